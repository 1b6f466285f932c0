// The page of bkfs serve in a browser: node page.mjs URL TOKEN-FILE DIRECTORY-FOR-SCREENSHOTS
//
// Scripts are off, as far as the page is concerned: it must work without them.
import { readFileSync } from "node:fs";
import { PHONE, Server, browser, check, isWell } from "./browser.mjs";

const [url, tokenFile, shots] = process.argv.slice(2);
const server = new Server(url, tokenFile);

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
  const page = await server.session({ javaScriptEnabled: false, acceptDownloads: true });
  await page.goto(url);
  await page.getByLabel("Token").fill("a wrong token");
  await page.keyboard.press("Enter");
  await page.getByText("This is not the token.").waitFor();
  page.troubles = page.troubles.filter((trouble) => !trouble.includes("403"));
  await server.logIn(page);
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
  isWell(page);
  console.log("works without scripts");

  // Each kind of page, with scripts on: nothing runs, and axe finds nothing.
  for (const colorScheme of ["light", "dark"]) {
    const page = await server.session({ colorScheme, bypassCSP: false });
    const reader = await server.session({ colorScheme, bypassCSP: true });
    for (const each of [page, reader]) {
      await server.logIn(each);
      each.troubles = [];
    }
    for (const [name, path] of PAGES) {
      await page.goto(url + path);
      await page.screenshot({ path: `${shots}/${name}-${colorScheme}.png` });
      if (name === "large") continue;
      await server.look(reader, path);
    }
    isWell(page);
  }
  console.log("axe finds nothing, light and dark");

  const phone = await server.loggedIn(PHONE);
  for (const [name, path] of PAGES) {
    await server.fits(phone, path);
    await phone.screenshot({ path: `${shots}/${name}-phone.png` });
  }
  console.log("fits on a phone");
} finally {
  await browser.close();
}
