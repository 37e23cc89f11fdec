// Chromium without a window, and without any of its calls to the outside.
'use strict';

const { chromium } = require('playwright-core');

const FLAGS = [
  '--no-sandbox',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  // WebGL without a graphics card.
  '--use-angle=swiftshader',
  '--enable-unsafe-swiftshader',
];

// Opens a page, hands it to `look`, and prints what that returns as JSON. A page that throws is an error.
exports.look = async (url, look) => {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, headless: true, args: FLAGS });
  try {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    const errors = [];
    page.on('pageerror', (error) => errors.push(String(error)));
    await page.goto(url);
    const result = await look(page);
    console.log(JSON.stringify({ ...result, errors }));
  } finally {
    await browser.close();
  }
};
