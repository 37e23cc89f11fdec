// svg.cjs PICTURE.svg FRAME TERM SCREENSHOT.png: clicks on a frame of a flame graph, then searches for a term.
'use strict';

const { pathToFileURL } = require('url');
const { look } = require('./browser.cjs');

const [, , picture, frame, term, screenshot] = process.argv;

// What is shown: each frame with its name, the width that it has now, and its colour.
const frames = (page) => page.evaluate(() => [...document.querySelectorAll('#frames > g')].map((group) => {
  const rectangle = group.querySelector('rect');
  return {
    name: group.querySelector('title').textContent,
    width: rectangle.getBoundingClientRect().width,
    fill: getComputedStyle(rectangle).fill,
    hidden: getComputedStyle(group).display === 'none' || group.classList.contains('hide'),
  };
}));

look(pathToFileURL(picture).href, async (page) => {
  const before = await frames(page);
  const title = await page.locator('#title').textContent();
  const index = before.findIndex((shown) => shown.name === frame);
  if (index < 0) throw new Error(`no frame ${frame} among ${before.map((shown) => shown.name)}`);
  // As a hand does it: what lies there may be the frame's text.
  const box = await page.locator('#frames > g').nth(index).locator('rect').boundingBox();
  await page.mouse.click(box.x + box.width / 2, box.y + box.height / 2);
  const zoomed = await frames(page);
  await page.locator('#unzoom').click();
  page.on('dialog', (dialog) => dialog.accept(term));
  await page.locator('#search').click();
  const searched = await frames(page);
  const matched = await page.locator('#matched').textContent();
  await page.screenshot({ path: screenshot });
  // The same by the keyboard: from the outermost frame one up, zoom there, and back.
  await page.keyboard.press('Escape');
  const picked = () => page.evaluate(() => document.activeElement.querySelector('title')?.textContent);
  await page.locator('#frames > g[tabindex="0"]').focus();
  const outermost = await picked();
  for (let depth = 0; depth < 40 && !(await picked()).startsWith('main chunk@'); depth++) await page.keyboard.press('ArrowUp');
  const chunk = await picked();
  await page.keyboard.press('ArrowUp');
  const above = await picked();
  await page.keyboard.press('Enter');
  const entered = (await frames(page)).find((shown) => shown.name === above);
  await page.keyboard.press('Escape');
  const left = (await frames(page)).find((shown) => shown.name === above);
  // Labels that do not fit, by the room that they have.
  const labels = await page.evaluate(() => ['f@/a/long/path/to/file.lua:123', 'f@/a/long/path/to/file.lua:123_[j]', 'lj_gc_step']
    .map((label) => [29, 20, 14, 10, 5, 3].map((room) => shorten(label, room))));
  await page.emulateMedia({ colorScheme: 'dark' });
  const dark = await page.evaluate(() => getComputedStyle(document.querySelector('#title')).fill);
  const keyboard = { outermost, chunk, above, entered: entered.width, left: left.width };
  return { title, before, zoomed, searched, matched, keyboard, labels, dark };
});
