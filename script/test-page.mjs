// What script/test-page asks of the page at an address, with a browser. Exits with 1 when anything is wrong. With a
// third argument it leaves a picture of every screen in that folder.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { HtmlValidate } from "html-validate";
import puppeteer from "puppeteer-core";
import { drag, keys, keyboard, live, values } from "./test-page-values.mjs";

const [base, executablePath, pictures] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const WIDTHS = [320, 360, 1280, 2560];
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
const slo = link(await get("/slos"), "/slos/");
const screens = ["/", "/?range=all", service, "/spans", "/spans?error=true", trace, span, "/slos", "/map", "/agent",
  "/profiles?service=catalog",
  "/profiles/compare?service=catalog&slow=true", "/nothing", "/login", ...(slo ? [slo] : [])];
// The flame graph as a document of its own, as its frame has it.
const graph = (await get("/profiles?service=catalog")).match(/<iframe[^>]* src="([^"]+)"/)[1].replaceAll("&amp;", "&");

const validator = new HtmlValidate({ extends: ["html-validate:standard"] });
for (const path of screens) {
  const { results } = await validator.validateString(await get(path));
  for (const it of results.flatMap((result) => result.messages))
    wrong.push(`${path}: HTML, line ${it.line}: ${it.ruleId}: ${it.message}`);
}

const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
let looked = 0, rules = 0;
for (const theme of ["light", "dark"]) {
  for (const width of WIDTHS) {
    for (const path of [...screens, graph]) {
      const where = `${path} (${theme}, ${width} px)`;
      const page = await browser.newPage();
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
      // A flame graph scrolls in its own frame: narrower than that its names could not be read.
      if (wide > 0 && path !== graph) wrong.push(`${where}: ${wide} px wider than the screen`);
      // Its flame graph comes once it is on the screen.
      const flame = await page.$("main > iframe.flame, section > iframe.flame");
      if (flame && await flame.isVisible()) {
        await flame.scrollIntoView();
        const drawn = await (await flame.contentFrame()).waitForSelector("#graph rect", { timeout: 10_000 }).catch(() => null);
        if (!drawn) wrong.push(`${where}: the flame graph is empty`);
        await page.evaluate(() => scrollTo(0, 0));
      }
      if (pictures) {
        const name = path.replaceAll(/[0-9a-f]{16,}/g, "id").replaceAll(/[^a-z0-9]+/gi, "-");
        await page.screenshot({ path: `${pictures}/${name}-${theme}-${width}.png`, fullPage: true });
      }
      await page.evaluate(axe);
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

/** From the alert to the function, link by link, as a person goes. */
async function clicks(script) {
  const page = await browser.newPage();
  await page.setJavaScriptEnabled(script);
  await page.setViewport({ width: 1280, height: 900 });
  page.on("console", (said) => wrong.push(`clicks: console: ${said.text()}`));
  const picture = async (nth) => pictures && script && page.screenshot({ path: `${pictures}/click-${nth}.png` });
  const text = () => page.$eval("main", (it) => it.textContent);
  const follow = async (what, find) => {
    const links = await page.$$eval("main a", (all) => all.map((it) => [it.getAttribute("href"), it.textContent, it.closest("tr, .alert")?.textContent ?? ""]));
    const nth = links.findIndex(find);
    if (nth < 0) throw new Error(`no link to ${what} on ${page.url()}`);
    await Promise.all([page.waitForNavigation(), (await page.$$("main a"))[nth].click()]);
  };
  await page.goto(base + "/");
  for (let n = 0; n < 120 && !(await page.$(".alert")); n++) {
    await new Promise((done) => setTimeout(done, 500));
    await page.goto(base + "/");
  }
  await picture(0);
  await follow("the objective", ([to, , around]) => to.startsWith("/slos/") && around.includes("search-is-fast"));
  await picture(1);
  await follow("a trace", ([to]) => to.startsWith("/traces/"));
  await picture(2);
  await follow("the span of the catalog", ([to, , around]) => to.startsWith("/traces/") && around.includes("catalog serves"));
  await picture(3);
  const said = await text();
  if (!/ of it in \S*edit_distance/.test(said)) wrong.push(`clicks: the function is not named: ${said.slice(0, 400)}`);
  const graph = await page.$eval("main iframe, main img, main object", (it) => it.getAttribute("src") ?? it.getAttribute("data"));
  if (!(await get(graph)).includes("edit_distance")) wrong.push(`clicks: ${graph} does not show the function`);
  await page.close();
}
for (const script of [true, false]) {
  try { await clicks(script); } catch (error) { wrong.push(`clicks, script ${script}: ${error.message}`); }
}
let compared = 0;
try {
  compared = await values(browser, base, wrong);
  console.log(`${compared} numbers on the screens compared with the API and /metrics; ${await drag(browser, base, service, wrong)}`);
  console.log(await live(browser, base, wrong));
  console.log(await keys(browser, base, wrong));
  const few = screens.map((path) => path.startsWith("/spans") ? `${path}${path.includes("?") ? "&" : "?"}limit=20` : path);
  console.log(`${await keyboard(browser, base, few, wrong)} links, buttons and fields reached by the Tab key`);
} catch (error) { wrong.push(`values: ${error.message}`); }
await browser.close();

/** Share of a core that the agent takes in a minute, by its own account. */
async function share() {
  const cpu = async () => Number((await get("/metrics")).match(/^process_cpu_seconds_total ([0-9.e+-]+)/m)[1]);
  const before = await cpu();
  await new Promise((done) => setTimeout(done, 60_000));
  return ((await cpu()) - before) / 60;
}
const percent = (it) => `${(it * 100).toFixed(2)} %`;
const closed = await share();
const three = await Promise.all([1, 2, 3].map(() => puppeteer.launch({ executablePath, args: ["--no-sandbox"] })));
let asked = 0;
for (const it of three) {
  const page = await it.newPage();
  await page.goto(base + "/", { waitUntil: "load" });
  page.on("request", () => asked++);
}
const open = await share();
if (asked < 15) wrong.push(`three open pages asked ${asked} times in a minute: they do not refresh`);
if (open - Math.max(closed, 0) > 0.01) wrong.push(`three open pages cost ${percent(open - closed)} of a core`);
for (const it of three) await it.close();
const after = await share();
console.log(`the agent takes of a core: ${percent(closed)}; with the page open in three browsers, which asked ${asked} times, ${percent(open)}; then ${percent(after)}`);

wrong.forEach((line) => console.error(line));
console.log(`${screens.length} screens valid HTML; ${looked} looks at them by axe, ${rules} rules passed; ${wrong.length} things wrong`);
process.exit(wrong.length === 0 && looked === (screens.length + 1) * 2 * WIDTHS.length && rules > looked && compared > 100 ? 0 : 1);
