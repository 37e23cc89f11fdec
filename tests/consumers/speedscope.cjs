// speedscope.cjs PROFILE.speedscope.json SCREENSHOT.png: checks a profile against speedscope's schema, and opens it there.
'use strict';

const fs = require('fs');
const path = require('path');
const { pathToFileURL } = require('url');
const Ajv = require('ajv');
const { look } = require('./browser.cjs');

const [, , profile, screenshot] = process.argv;
const release = path.join(path.dirname(require.resolve('speedscope/package.json')), 'dist/release');

const schema = JSON.parse(fs.readFileSync(path.join(release, 'file-format-schema.json')));
const validate = new Ajv({ strict: false }).compile(schema);
const valid = validate(JSON.parse(fs.readFileSync(profile)));

// With a profile to come, it does not wait for one to be chosen.
const url = `${pathToFileURL(path.join(release, 'index.html')).href}#localProfilePath=none.js`;
look(url, async (page) => {
  const text = fs.readFileSync(profile).toString('base64');
  await page.waitForFunction(() => window.speedscope);
  await page.evaluate(([name, text]) => window.speedscope.loadFileFromBase64(name, text), [path.basename(profile), text]);
  await page.waitForFunction(() => document.body.textContent.includes('Sandwich'));
  // The table of all functions.
  await page.keyboard.press('3');
  await page.waitForSelector('table tr td');
  const rows = await page.evaluate(() => [...document.querySelectorAll('table tr')].map((row) => row.textContent));
  await page.keyboard.press('2');
  await page.waitForTimeout(300);
  await page.screenshot({ path: screenshot });
  return { valid, problems: validate.errors, rows };
});
