// The page of bkfs serve in a browser: node page.mjs URL TOKEN-FILE DIRECTORY-FOR-SCREENSHOTS
//
// Scripts are off, as far as the page is concerned: it must work without them. Whatever it tries to
// load from elsewhere, or to run, is an error here.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [url, tokenFile, shots] = process.argv.slice(2);
const token = readFileSync(tokenFile, "ascii").trim();
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

function check(holds, text) {
  if (!holds) throw new Error(text);
}

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

// A session of a browser; errors of the page are errors of the test.
async function session(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.troubles = [];
  page.on("dialog", (dialog) => page.troubles.push(`dialog: ${dialog.message()}`));
  page.on("pageerror", (error) => page.troubles.push(`error: ${error}`));
  page.on("console", (message) => page.troubles.push(`${message.type()}: ${message.text()}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) page.troubles.push(`request: ${request.url()}`);
  });
  return page;
}

async function logIn(page) {
  await page.goto(url);
  check(page.url() === `${url}/login`, `not asked for the token at ${page.url()}`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL(`${url}/`);
}

const PAGES = [
  ["overview", "/"],
  ["volume", "/repository/1/main/"],
  ["directory", "/repository/1/main/first"],
  ["large", "/repository/1/main/first/large"],
  ["file", "/repository/1/main/first/plain"],
  ["versions", "/repository/1/main/first/versions?as=versions"],
];

try {
  // Without scripts: by the keyboard and by links, from the form to a download and out again.
  const page = await session({ javaScriptEnabled: false, acceptDownloads: true });
  await page.goto(url);
  await page.getByLabel("Token").fill("a wrong token");
  await page.keyboard.press("Enter");
  await page.getByText("This is not the token.").waitFor();
  page.troubles = page.troubles.filter((trouble) => !trouble.includes("403"));
  await logIn(page);
  await page.getByRole("link", { name: "main", exact: true }).click();
  await page.getByRole("link", { name: "first", exact: true }).click();
  await page.getByRole("link", { name: "<script>alert(1)" }).click();
  check((await page.locator("h1").textContent()) === "<script>alert(1)", "not the file");
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("link", { name: "Download" }).click(),
  ]);
  check(readFileSync(await download.path(), "utf8") === "contents 2", "another file");
  check(!/[<>/"]/.test(download.suggestedFilename()), download.suggestedFilename());
  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForURL(`${url}/login`);
  await page.goto(`${url}/repository/1/main/`);
  check(page.url() === `${url}/login`, "the session goes on");
  check(page.troubles.length === 0, page.troubles.join("; "));
  console.log("works without scripts");

  // Each kind of page, with scripts on: nothing runs, and axe finds nothing.
  for (const colorScheme of ["light", "dark"]) {
    const page = await session({ colorScheme, bypassCSP: false });
    const reader = await session({ colorScheme, bypassCSP: true });
    for (const each of [page, reader]) {
      await logIn(each);
      each.troubles = [];
    }
    for (const [name, path] of PAGES) {
      await page.goto(url + path);
      await page.screenshot({ path: `${shots}/${name}-${colorScheme}.png` });
      if (name === "large") continue;
      await reader.goto(url + path);
      await reader.evaluate(axe);
      const found = await reader.evaluate(() => window.axe.run());
      const lines = found.violations.map((one) => `${one.id}: ${one.nodes[0].html}`);
      check(lines.length === 0, `${path}: ${lines.join("; ")}`);
      check(found.passes.length > 10, `axe looked at little of ${path}`);
    }
    check(page.troubles.length === 0, page.troubles.join("; "));
  }
  console.log("axe finds nothing, light and dark");

  const phone = await session({ viewport: { width: 360, height: 740 } });
  await logIn(phone);
  for (const [name, path] of PAGES) {
    await phone.goto(url + path);
    await phone.screenshot({ path: `${shots}/${name}-phone.png` });
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 360, `${path} is ${wide} px wide on a phone`);
  }
  console.log("fits on a phone");
} finally {
  await browser.close();
}
