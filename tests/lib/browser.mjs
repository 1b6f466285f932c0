// A browser that looks at the page of bkfs serve. Whatever the page tries to load from elsewhere, or
// to run, is an error.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export function check(holds, text) {
  if (!holds) throw new Error(text);
}

export const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

// The server at a URL, and its token.
export class Server {
  constructor(url, tokenFile) {
    this.url = url;
    this.token = readFileSync(tokenFile, "ascii").trim();
  }

  // A session of a browser; errors of the page are its troubles.
  async session(options) {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    page.setDefaultTimeout(30_000);
    page.troubles = [];
    page.on("dialog", (dialog) => page.troubles.push(`dialog: ${dialog.message()}`));
    page.on("pageerror", (error) => page.troubles.push(`error: ${error}`));
    page.on("console", (message) => page.troubles.push(`${message.type()}: ${message.text()}`));
    page.on("request", (request) => {
      if (!request.url().startsWith(this.url)) page.troubles.push(`request: ${request.url()}`);
    });
    return page;
  }

  async logIn(page) {
    await page.goto(this.url);
    check(page.url() === `${this.url}/login`, `not asked for the token at ${page.url()}`);
    await page.getByLabel("Token").fill(this.token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForURL(`${this.url}/`);
  }

  // A session that has shown the token.
  async loggedIn(options) {
    const page = await this.session(options);
    await this.logIn(page);
    return page;
  }

  // Lets axe look at a page. The session needs bypassCSP: axe is a script.
  async look(reader, path) {
    await reader.goto(this.url + path);
    await reader.evaluate(axe);
    const found = await reader.evaluate(() => window.axe.run());
    const lines = found.violations.map((one) => `${one.id}: ${one.nodes[0].html}`);
    check(lines.length === 0, `${path}: ${lines.join("; ")}`);
    check(found.passes.length > 10, `axe looked at little of ${path}`);
  }

  async fits(phone, path) {
    await phone.goto(this.url + path);
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 360, `${path} is ${wide} px wide on a phone`);
  }
}

export const PHONE = { viewport: { width: 360, height: 740 } };

export function isWell(page) {
  check(page.troubles.length === 0, page.troubles.join("; "));
}
