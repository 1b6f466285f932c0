// Forgets, brings back and restores with the page of bkfs serve: node page_changes.mjs URL TOKEN-FILE
//
// Scripts are off for what is done; with scripts, axe looks at each page with a form.
import { PHONE, Server, browser, check, isWell } from "./browser.mjs";

const [url, tokenFile] = process.argv.slice(2);
const server = new Server(url, tokenFile);

try {
  const page = await server.loggedIn({ javaScriptEnabled: false });
  await page.goto(`${url}/repository/1/main/first`);
  await page.getByRole("link", { name: "Forget this snapshot" }).click();
  await page.getByRole("link", { name: "Keep it" }).click();
  await page.getByRole("link", { name: "Forget this snapshot" }).click();
  await page.getByRole("button", { name: "Forget first" }).click();
  await page.waitForURL(`${url}/repository/1/main/`);
  check((await page.getByRole("link", { name: "first", exact: true }).count()) === 0, "it is listed");
  const reader = await server.loggedIn({ bypassCSP: true });
  const look = async (path) => {
    await server.look(reader, path);
    isWell(reader);
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
  isWell(page);
  console.log("restores");

  const first = "/repository/1/main/first";
  for (const path of [first, `${first}?as=forget`, `${first}/tree?as=restore`, "/restores"]) {
    await look(path);
  }
  const phone = await server.loggedIn(PHONE);
  for (const path of [`${first}?as=forget`, `${first}/tree?as=restore`, "/restores", "/restores/1"]) {
    await server.fits(phone, path);
  }
  console.log("axe finds nothing, and it fits on a phone");
} finally {
  await browser.close();
}
