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
  return { title, before, zoomed, searched, matched };
});
