//! The annotated listing as an HTML page: one file, without scripts, fonts or other external parts.

use std::fmt::Write as _;

use lj_trace_luajit::jit::CodeCounts;
use lj_trace_text::untrusted::Untrusted;

use super::annotate::AnnotatedSource;

const STYLE: &str = "\
:root { color-scheme: light dark; --hot: 220, 60, 30; --bad: #b3261e; --good: #1b6e3c; --dim: #666; --line: #ddd }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #81c995; --dim: #999; --line: #444 } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5em }
h1 { font-size: 1.2em }
p { color: var(--dim) }
table { border-collapse: collapse; font: 13px/1.4 ui-monospace, monospace }
th { text-align: right; font-weight: normal; color: var(--dim); border-bottom: 1px solid var(--line) }
th, td { padding: 0 .6em; white-space: pre; vertical-align: top }
td.n { text-align: right }
td.blacklisted, td.off { color: var(--bad) }
td.compiled { color: var(--good) }
tr.note td { white-space: normal; color: var(--bad); max-width: 60em; padding-bottom: .3em }
";

/// The page.
pub fn page(annotation: &AnnotatedSource) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, annotation);
    out
}

fn write(out: &mut String, annotation: &AnnotatedSource) -> std::fmt::Result {
    let title = escape(&annotation.title());
    let name = escape(&annotation.source);
    writeln!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(
        out,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )?;
    writeln!(out, "<title>{name}: compiled and interpreted lines</title>\n<style>\n{STYLE}</style>\n</head>\n<body>")?;
    writeln!(out, "<h1>{name}</h1>\n<p>{title}.</p>")?;
    if let Some(unread) = &annotation.unread {
        writeln!(out, "<p>The source is not shown: {}. --source FOLDER says where it is.</p>", escape(unread))?;
    }
    writeln!(
        out,
        "<table>\n<thead><tr><th>time</th><th>compiled</th><th>interpreted</th><th>state</th><th>line</th><th></th></tr></thead>\n<tbody>"
    )?;
    for line in &annotation.lines {
        let CodeCounts { interpreted, compiled, .. } = line.samples;
        let heat = match annotation.samples {
            Some(all) if all > 0 => line.samples.all() as f64 / all as f64,
            _ => 0.0,
        };
        let color = match heat {
            0.0 => String::new(),
            // Red is strongest at a fifth of the samples.
            heat => format!(" style=\"background: rgba(var(--hot), {:.2})\"", 0.08 + 0.42 * (heat * 5.0).min(1.0)),
        };
        let class = match line.word() {
            "turned off" => "off",
            word => word,
        };
        writeln!(
            out,
            "<tr id=\"L{number}\"><td class=\"n\"{color}>{all}</td><td class=\"n\">{compiled}</td>\
             <td class=\"n\">{interpreted}</td><td class=\"{class}\">{word}</td><td class=\"n\">{number}</td><td>{text}</td></tr>",
            number = line.number,
            all = annotation.share(line.samples.all()),
            compiled = annotation.share(compiled),
            interpreted = annotation.share(interpreted),
            word = line.word(),
            text = escape(&line.text),
        )?;
        if !line.notes.is_empty() {
            let notes: Vec<String> = line.notes.iter().map(|note| escape(note)).collect();
            writeln!(out, "<tr class=\"note\"><td colspan=\"5\"></td><td>{}</td></tr>", notes.join("<br>"))?;
        }
    }
    writeln!(out, "</tbody>\n</table>\n</body>\n</html>")
}

/// Escapes a text for HTML, also within an attribute.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in Untrusted(text).text().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::annotate::tests::annotation;
    use super::*;

    #[test]
    fn what_is_in_a_file_is_text() {
        let mut hostile = annotation();
        hostile.source = "</title><script>alert(1)</script>\u{202e}".into();
        let page = page(&hostile);
        assert!(!page.contains("<script>") && !page.contains("<b>note") && !page.contains('\u{202e}'), "{page}");
        for text in ["for k in &lt;pairs&gt; &amp; &quot;x&quot;", "&lt;b&gt;note", "\\u{202e}", "id=\"L2\""] {
            assert!(page.contains(text), "no {text:?} in\n{page}");
        }
        assert_eq!(page.matches("<tr").count(), page.matches("</tr>").count());
    }
}
