// Forgets, brings back and restores with the page of bkfs serve: node page_changes.mjs URL TOKEN-FILE
//
// Scripts are off for what is done; with scripts, axe looks at each page with a form.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [url, tokenFile] = process.argv.slice(2);
const token = readFileSync(tokenFile, "ascii").trim();
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

function check(holds, text) {
  if (!holds) throw new Error(text);
}

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

async function session(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.troubles = [];
  page.on("pageerror", (error) => page.troubles.push(`error: ${error}`));
  page.on("console", (message) => page.troubles.push(`${message.type()}: ${message.text()}`));
  await page.goto(url);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL(`${url}/`);
  return page;
}

try {
  const page = await session({ javaScriptEnabled: false });
  await page.goto(`${url}/repository/1/main/first`);
  await page.getByRole("link", { name: "Forget this snapshot" }).click();
  await page.getByRole("link", { name: "Keep it" }).click();
  await page.getByRole("link", { name: "Forget this snapshot" }).click();
  await page.getByRole("button", { name: "Forget first" }).click();
  await page.waitForURL(`${url}/repository/1/main/`);
  check((await page.getByRole("link", { name: "first", exact: true }).count()) === 0, "it is listed");
  const reader = await session({ bypassCSP: true });
  const look = async (path) => {
    await reader.goto(url + path);
    await reader.evaluate(axe);
    const found = await reader.evaluate(() => window.axe.run());
    const lines = found.violations.map((one) => `${one.id}: ${one.nodes[0].html}`);
    check(lines.length === 0, `${path}: ${lines.join("; ")}`);
    check(found.passes.length > 10, `axe looked at little of ${path}`);
    check(reader.troubles.length === 0, reader.troubles.join("; "));
  };
  await look("/repository/1/main/");
  await page.getByRole("button", { name: "Bring back first" }).click();
  await page.getByRole("link", { name: "first", exact: true }).click();
  console.log("forgets and brings back");

  await page.getByRole("link", { name: "tree" }).click();
  await page.getByRole("link", { name: "Restore to this machine" }).click();
  check((await page.getByLabel("Directory").inputValue()) === "first/tree", "another proposal");
  await page.getByLabel("Directory").fill("by browser");
  await page.getByLabel("If files are there").selectOption("if-changed");
  await page.getByRole("button", { name: "Restore" }).click();
  await page.waitForURL(/\/restores\/\d+$/);
  for (let turn = 0; turn < 100; turn++) {
    if ((await page.getByText("on its way").count()) === 0) break;
    await page.waitForTimeout(200);
    await page.reload();
  }
  check((await page.locator("dd", { hasText: /^restored$/ }).count()) === 1, "it is not restored");
  check((await page.getByText("2.86 MiB").count()) >= 1, "its size is missing");
  await look(new URL(page.url()).pathname);
  await page.goto(`${url}/`);
  await page.getByRole("link", { name: "Restores to this machine" }).click();
  check((await page.locator("tbody tr").count()) > 1, "no restores are listed");
  check(page.troubles.length === 0, page.troubles.join("; "));
  console.log("restores");

  const first = "/repository/1/main/first";
  for (const path of [first, `${first}?as=forget`, `${first}/tree?as=restore`, "/restores"]) {
    await look(path);
  }
  const phone = await session({ viewport: { width: 360, height: 740 } });
  for (const path of [`${first}?as=forget`, `${first}/tree?as=restore`, "/restores", "/restores/1"]) {
    await phone.goto(url + path);
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 360, `${path} is ${wide} px wide on a phone`);
  }
  console.log("axe finds nothing, and it fits on a phone");
} finally {
  await browser.close();
}
