// What script/test-page asks of the page at an address, with a browser. Exits with 1 when anything is wrong.
import { createRequire } from "node:module";
import { HtmlValidate } from "html-validate";
import puppeteer from "puppeteer-core";

const [base, executablePath] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const wrong = [];

const get = async (path) => (await fetch(base + path, { headers: { accept: "text/html" } })).text();
const link = (html, begin) => html.match(new RegExp(`href="(${begin}[^"]*)"`))?.[1]?.replaceAll("&amp;", "&");

/** Asks again until there is such a link: spans come with the traffic. */
async function found(path, begin) {
  for (let n = 0; n < 120; n++) {
    const to = link(await get(path), begin);
    if (to) return to;
    await new Promise((done) => setTimeout(done, 500));
  }
  throw new Error(`no link to ${begin} on ${path}`);
}

const service = await found("/", "/services/");
const trace = (await found("/spans?error=true", "/traces/[0-9a-f]{32}")).slice(0, "/traces/".length + 32);
const span = await found(trace, `${trace}/[0-9a-f]{16}`);
const screens = ["/", "/?range=all", service, "/spans", "/spans?error=true", trace, span, "/slos", "/map", "/agent",
  "/nothing", "/login"];

const validator = new HtmlValidate({ extends: ["html-validate:standard"] });
for (const path of screens) {
  const { results } = await validator.validateString(await get(path));
  for (const it of results.flatMap((result) => result.messages))
    wrong.push(`${path}: HTML, line ${it.line}: ${it.ruleId}: ${it.message}`);
}

const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
let looked = 0, rules = 0;
for (const theme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    for (const path of screens) {
      const where = `${path} (${theme}, ${width} px)`;
      const page = await browser.newPage();
      await page.setBypassCSP(true); // axe is put into the page
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
      page.on("console", (said) => {
        // A browser says that of every answer with an error, and two of the screens are such answers.
        if (!/Failed to load resource.*(404|503)/.test(said.text())) wrong.push(`${where}: console: ${said.text()}`);
      });
      page.on("pageerror", (error) => wrong.push(`${where}: ${error.message}`));
      page.on("request", (request) => {
        if (!request.url().startsWith(base + "/") && !request.url().startsWith("data:"))
          wrong.push(`${where}: asks ${request.url()}`);
      });
      await page.goto(base + path, { waitUntil: "load" });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) wrong.push(`${where}: ${wide} px wider than the screen`);
      await page.addScriptTag({ path: axe });
      const found = await page.evaluate((values) =>
        window.axe.run(document, { runOnly: { type: "tag", values }, iframes: false }), RULES);
      looked += 1;
      rules += found.passes.length;
      for (const it of found.violations) {
        const [node] = it.nodes;
        wrong.push(`${where}: ${it.id} (${it.nodes.length} times): ${it.help}: ${node.html.slice(0, 160)}: ` +
          node.failureSummary.replaceAll(/\s+/g, " "));
      }
      await page.close();
    }
  }
}
await browser.close();
wrong.forEach((line) => console.error(line));
console.log(`${screens.length} screens valid HTML; ${looked} looks at them by axe, ${rules} rules passed; ${wrong.length} things wrong`);
process.exit(wrong.length === 0 && looked === screens.length * 4 && rules > looked ? 0 : 1);
