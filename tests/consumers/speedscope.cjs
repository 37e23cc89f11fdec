// speedscope.cjs SCREENSHOT.png PROFILE.speedscope.json,FUNCTION,FUNCTION...: checks profiles against speedscope's schema,
// and opens them there, one after the other, until it shows these functions.
'use strict';

const fs = require('fs');
const path = require('path');
const { pathToFileURL } = require('url');
const Ajv = require('ajv');
const { look } = require('./browser.cjs');

const [, , screenshot, ...profiles] = process.argv;
const release = path.join(path.dirname(require.resolve('speedscope/package.json')), 'dist/release');

const schema = JSON.parse(fs.readFileSync(path.join(release, 'file-format-schema.json')));
const validate = new Ajv({ strict: false }).compile(schema);

// The rows of the table of all functions.
const open = async (page, argument) => {
  const [profile, ...names] = argument.split(',');
  const file = fs.readFileSync(profile);
  const valid = validate(JSON.parse(file));
  const problems = validate.errors;
  // With a profile to come, it does not wait for one to be chosen.
  await page.goto(`${pathToFileURL(path.join(release, 'index.html')).href}?${path.basename(profile)}#localProfilePath=none.js`);
  await page.waitForFunction(() => window.speedscope);
  const load = ([name, text]) => window.speedscope.loadFileFromBase64(name, text);
  await page.evaluate(load, [path.basename(profile), file.toString('base64')]);
  await page.waitForFunction(() => document.body.textContent.includes('Sandwich'));
  // The table has only those rows that are in the window.
  await page.keyboard.press('3');
  await page.setViewportSize({ width: 1280, height: 4000 });
  const shows = (names) => {
    const rows = [...document.querySelectorAll('table tr')].map((row) => row.textContent);
    return names.every((name) => rows.some((row) => row.endsWith(name)));
  };
  await page.waitForFunction(shows, names);
  const rows = await page.evaluate(() => [...document.querySelectorAll('table tr')].map((row) => row.textContent));
  await page.setViewportSize({ width: 1280, height: 800 });
  return { valid, problems, rows };
};

look('about:blank', async (page) => {
  const shown = [];
  for (const profile of profiles) shown.push(await open(page, profile));
  await page.keyboard.press('2');
  await page.waitForSelector('canvas');
  await page.screenshot({ path: screenshot });
  return { shown };
});
