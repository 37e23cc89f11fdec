// A label that does not fit is cut between the function and the line: these two tell most.
function shorten(text, room) {
    if (text.length <= room) return text;
    if (room < 4) return "";
    var head = text.indexOf("@") + 1;
    var line = (/:\d+(_\[j\])?$/.exec(text) || [""])[0].length;
    var end = Math.max(room - 2 - head, Math.min(line, Math.floor(room / 2)));
    if (head === 0 && line === 0) end = Math.floor((room - 2) / 3);
    return text.substring(0, room - 2 - end) + ".." + text.substring(text.length - end);
}
function update_text_for_elements(elements) {
    var character = known_font_width || fontsize * fontwidth;
    var changes = [];
    for (var i = 0; i < elements.length; i++) {
        var rect = find_child(elements[i], "rect");
        var text = find_child(elements[i], "title").textContent.replace(/\([^(]*\)$/, "").trim();
        var width = parseFloat(rect.attributes.width.value) * frames.attributes.width.value / 100 - 3;
        var x = parseFloat(rect.attributes.x.value) + 100 * 3 / frames.attributes.width.value;
        changes.push([format_percent(x), shorten(text, Math.floor(width / character))]);
    }
    for (var i = 0; i < elements.length; i++) {
        var label = find_child(elements[i], "text");
        label.attributes.x.value = changes[i][0];
        label.textContent = changes[i][1];
    }
}
function update_text(element) { update_text_for_elements([element]); }
// The keyboard: Tab comes to the frame that is picked, arrows pick others, Enter zooms, Escape shows all again, / searches.
var picked = null;
function place(frame) {
    var rect = find_child(frame, "rect"), number = function(name) { return parseFloat(rect.attributes[name].value); };
    return { y: number("y"), x: number("fg:x"), w: number("fg:w") };
}
function pick(frame) {
    if (!frame) return;
    if (picked) picked.setAttribute("tabindex", "-1");
    picked = frame;
    picked.setAttribute("tabindex", "0");
    picked.focus();
    details.nodeValue = nametype + " " + g_to_text(picked);
}
function neighbour(frame, key) {
    var from = place(frame), best = null, least = Infinity;
    for (var i = 0; i < frames.children.length; i++) {
        var other = frames.children[i];
        if (other === frame || other.classList.contains("hide") || !find_child(other, "rect")) continue;
        var to = place(other), distance = Infinity;
        if (key === "ArrowUp" || key === "ArrowDown") {
            var rows = key === "ArrowUp" ? from.y - to.y : to.y - from.y;
            var overlaps = to.x < from.x + from.w && from.x < to.x + to.w;
            // Of one row, the widest.
            if (rows > 0 && overlaps) distance = rows * 1e9 - to.w / total_samples;
        } else if (to.y === from.y) {
            var columns = key === "ArrowLeft" ? from.x - to.x : to.x - from.x;
            if (columns > 0) distance = columns;
        }
        if (distance < least) { least = distance; best = other; }
    }
    return best;
}
window.addEventListener("load", function() {
    for (var i = 0; i < frames.children.length; i++) {
        var frame = frames.children[i];
        frame.setAttribute("tabindex", "-1");
        if (!picked || place(frame).w > place(picked).w || place(frame).y > place(picked).y) picked = frame;
    }
    if (picked) picked.setAttribute("tabindex", "0");
});
window.addEventListener("keydown", function(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") search_prompt();
    else if (e.key === "Escape") { reset_search(); unzoom(); }
    else if (e.key === "Enter" && picked) zoom(picked);
    else if (e.key.indexOf("Arrow") === 0 && picked) {
        var focused = document.activeElement === picked;
        pick(focused ? neighbour(picked, e.key) : picked);
    } else return;
    e.preventDefault();
});
