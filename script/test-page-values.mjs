// Whether numbers on the screens, as a browser shows them, are those of the API and of /metrics. The demo goes on
// meanwhile: what only grows is asked before and after, and what is shown must lie between.
const MICROS = { ns: 1e-3, "µs": 1, ms: 1e3, s: 1e6, min: 60e6, h: 3600e6 };

/** Seconds of "12.3 ms". */
function seconds(text) {
  const [, number, unit] = text.trim().match(/^[+≈]? ?([0-9.]+) (ns|µs|ms|s|min|h)$/) ?? [];
  return number === undefined ? NaN : Number(number) * MICROS[unit] / 1e6;
}

/** What was shown with three digits. */
const near = (shown, is, off = 0.006) => Math.abs(shown - is) <= Math.abs(is) * off + 1e-9;

/** Series of durations in an exposition: requests, and requests at most so long, by service and side. */
function durations(text) {
  const rows = new Map();
  for (const line of text.split("\n")) {
    const [, what, side, part, labels, value] = line.match(
      /^((?:http|rpc|db)_(server|client)_(?:request|call|operation)_duration_seconds)_(count|bucket)\{(.*)\} ([0-9.e+]+)/) ?? [];
    if (!what) continue;
    const label = (name) => labels.match(new RegExp(`(?:^|,)${name}="([^"]*)"`))?.[1];
    const key = `${label("service_name")} ${side === "server" ? "serves" : "calls"}`;
    const row = rows.get(key) ?? { count: 0, failed: 0, buckets: new Map() };
    rows.set(key, row);
    if (part === "count") {
      row.count += Number(value);
      row.failed += label("error_type") ? Number(value) : 0;
    } else {
      const bound = Number(label("le").replace("+Inf", "Infinity"));
      row.buckets.set(bound, (row.buckets.get(bound) ?? 0) + Number(value));
    }
  }
  return rows;
}

/** Bounds between which a quantile of buckets lies. */
function bounds({ buckets, count }, quantile) {
  let low = 0;
  for (const [bound, n] of [...buckets].sort(([a], [b]) => a - b)) {
    if (n >= count * quantile) return [low, bound];
    low = bound;
  }
  return [low, Infinity];
}

/** Compares; returns how many numbers. */
export async function values(browser, base, wrong) {
  let compared = 0;
  const same = (is, what) => { compared += 1; if (!is) wrong.push(`values: ${what}`); };
  const json = async (path) => (await fetch(base + path)).json();
  const metrics = async () => durations(await (await fetch(base + "/metrics")).text());
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  const open = async (path) => page.goto(base + path, { waitUntil: "load" });
  const cells = (selector) => page.$$eval(selector, (rows) => rows.map((row) => ({
    to: row.querySelector("a[href]")?.getAttribute("href"), cells: [...row.cells].map((cell) => cell.innerText.trim()) })));
  const numbers = (what) => page.$$eval(`[data-is="${what}"]`, (all) => all.map((it) => Number(it.innerText.replaceAll(",", ""))));
  /** What is shown lies between what was asked before and after. */
  const between = async (path, what, ask) => {
    const before = await ask();
    await open(path);
    const shown = (await numbers(what)).reduce((sum, n) => sum + n, 0), after = await ask();
    same(before <= shown && shown <= after, `${path}: ${what}: ${shown} is not between ${before} and ${after}`);
  };

  // Services: requests and quantiles.
  const before = await metrics();
  await open("/?range=all");
  const rows = await cells("#rows tbody tr"), after = await metrics();
  same(rows.length >= before.size && before.size > 3, `/: ${rows.length} rows of ${before.size} services and sides`);
  for (const { to, cells: [name, side, requests, errors, p50, p95, p99] } of rows) {
    const [then, now] = [before, after].map((all) => all.get(`${name.split("\n")[0].split(" ")[0]} ${side}`));
    if (!then || !now) { same(!then, `/: ${name} ${side} has no series`); continue; }
    const n = Number(requests.replaceAll(",", ""));
    same(then.count <= n && n <= now.count, `/: ${name} ${side}: ${n} is not between ${then.count} and ${now.count}`);
    const failed = Number(errors.match(/ ([0-9,]+)$/)?.[1]?.replaceAll(",", "") ?? 0);
    same(then.failed <= failed && failed <= now.failed, `/: ${name} ${side}: ${failed} errors are not between ${then.failed} and ${now.failed}`);
    const [least, most] = [then.failed / now.count, now.failed / then.count].map((ratio) => ratio * 100);
    const percent = Number(errors.match(/([0-9.]+) %/)?.[1]);
    same(percent >= least - 0.05 && percent <= most + 0.05, `/: ${name} ${side}: ${errors} is not from ${least} to ${most} %`);
    for (const [quantile, shown] of [[0.5, p50], [0.95, p95], [0.99, p99]]) {
      const [low] = bounds(then, quantile), [, high] = bounds(now, quantile), it = seconds(shown);
      same(it >= low * 0.9 && it <= high * 1.1, `/: ${name} ${side}: ${quantile} is ${shown}, not from ${low} to ${high} s`);
    }
    if (side !== "serves") continue;
    // Its own screen: the sum of the routes is the tile.
    await between(`${to}?range=all`, "requests", async () => {
      const now = await metrics(), count = (does) => now.get(`${name.split(" ")[0]} ${does}`)?.count ?? 0;
      return 2 * (count("serves") + count("calls"));
    });
  }

  // Spans: each row is a span that the API has.
  await open("/spans?limit=30");
  for (const { to, cells: [name, service, , took] } of await cells("#rows tbody tr")) {
    const [, , trace, id] = to.split("/");
    const span = (await json(`/api/v1/traces/${trace}`)).spans.find((it) => it.span_id === id);
    same(span && name.startsWith(span.name.slice(0, 20)) && service.startsWith(span.service.name) && near(seconds(took), span.duration_seconds),
      `/spans: ${name} ${took}: ${JSON.stringify(span)}`);
  }

  // A trace: who began when and took how long; the bars are drawn accordingly.
  await open("/spans?error=true");
  const failed = await page.$$eval("#rows tbody th a, #rows tbody td a", (all) => all.map((it) => it.getAttribute("href")));
  let trace, spans = [];
  // One with a tree: some requests fail before they call.
  for (const to of failed.filter((to) => to.startsWith("/traces/"))) {
    trace = to.split("/")[2];
    ({ spans } = await json(`/api/v1/traces/${trace}`));
    if (spans.length > 2) break;
  }
  await open(`/traces/${trace}?all=true`);
  const first = Math.min(...spans.map((it) => it.start_unix_nano)), last = Math.max(...spans.map((it) => it.end_unix_nano));
  const bars = await page.$$eval("table.fall tbody tr", (all) => all.map((row) => {
    const [bar, own] = [row.querySelector("svg.bar"), row.querySelector("rect.own")].map((it) => it.getBoundingClientRect());
    return [(own.left - bar.left) / bar.width, own.width / bar.width];
  }));
  const fall = await cells("table.fall tbody tr");
  same(fall.length === spans.length && spans.length > 2, `/traces/${trace}: ${fall.length} of ${spans.length} spans`);
  fall.forEach(({ to, cells: [, , begun, took] }, nth) => {
    const span = spans.find((it) => to.endsWith(it.span_id));
    const begin = (span.start_unix_nano - first) / 1e9, all = (last - first) / 1e9, [x, width] = bars[nth];
    same(near(seconds(took), span.duration_seconds), `${to}: took ${took}, ${span.duration_seconds} s by the API`);
    same(near(seconds(begun), begin, 0.01) || Math.abs(seconds(begun) - begin) < 2e-6, `${to}: began ${begun}, ${begin} s by the API`);
    same(Math.abs(x - begin / all) < 0.01 && Math.abs(width - span.duration_seconds / all) < 0.01, `${to}: drawn at ${x}, ${width}`);
  });
  const one = spans[0];
  await open(`/traces/${trace}/${one.span_id}`);
  const took = await page.$eval("p.sum b", (it) => it.innerText);
  same(near(seconds(took), one.duration_seconds), `${one.span_id}: ${took}, ${one.duration_seconds} s by the API`);
  const shown = await page.$$eval("dl.pairs div", (all) => all.map((it) => [it.querySelector("dt").innerText, it.querySelector("dd").innerText]));
  for (const [name, value] of Object.entries(one.attributes))
    same(shown.some(([key, is]) => key === name && (is === String(value) || is.length > 60)), `${one.span_id}: ${name}=${value} is not shown`);
  const served = spans.find((it) => it.attributes["obi.elsewhere_ns"] !== undefined);
  await open(`/traces/${trace}/${served?.span_id}`);
  const parts = await page.$$eval("td[data-part]", (all) => all.map((it) => [Number(it.dataset.part), it.innerText]));
  // The moments are beyond what a number of JavaScript holds to the nanosecond.
  same(parts.length > 0 && Math.abs(parts.reduce((sum, [part]) => sum + part, 0) - served.duration_seconds * 1e9) < 1,
    `${served?.span_id}: parts ${parts} of ${served?.duration_seconds} s`);
  for (const [part, words] of parts) same(near(seconds(words), part / 1e9), `${served.span_id}: ${words}, ${part} ns`);

  // Objectives, map, agent.
  const slos = (await json("/api/v1/slos")).slos;
  same(slos.length > 0, "/slos: none");
  for (const { name } of slos)
    await between(`/slos/${name}`, "bad", async () => (await json("/api/v1/slos")).slos.find((it) => it.name === name).bad);
  await between("/map", "calls", async () => (await json("/api/v1/service-graph")).edges.reduce((sum, edge) => sum + edge.requests, 0));
  await between("/agent", "lost", async () => (await json("/api/v1/status")).lost);
  await page.close();
  return compared;
}

/** A box drawn over the slow half of a picture of durations leads to spans that took at least so long. */
export async function drag(browser, base, service, wrong) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(base + service, { waitUntil: "load" });
  const picture = await page.$("svg[data-spans]");
  await picture.scrollIntoView();
  const { x, y, width, height } = await picture.boundingBox();
  const to = page.waitForNavigation({ timeout: 10_000 });
  // Where nothing can be clicked: between two columns of examples.
  await page.mouse.move(x + width - 4, y + 3);
  await page.mouse.down();
  await page.mouse.move(x + width - 400, y + height / 2, { steps: 5 });
  await page.mouse.up();
  await to;
  const least = Number(new URL(page.url()).searchParams.get("min_duration_ms"));
  const rows = await page.$$eval("#rows tbody tr", (all) => all.map((row) => row.cells[3].innerText));
  const [from, to_] = ["from", "to"].map((name) => Number(new URL(page.url()).searchParams.get(name)));
  const begun = await page.$$eval("#rows tbody tr time", (all) => all.map((it) => Date.parse(it.dateTime) / 1e3));
  if (!(to_ > from) || begun.some((it) => it < from - 60 || it >= to_)) wrong.push(`drag: spans of ${begun} in ${page.url()}`);
  if (!(least > 0) || rows.length === 0 || rows.some((it) => seconds(it) * 1e3 < least * 0.99))
    wrong.push(`drag: ${page.url()} shows ${rows.join(", ")}`);
  await page.close();
  return `a box leads to ${rows.length} spans of at least ${least} ms`;
}

/** Numbers of an open page grow by themselves, without another page. */
export async function live(browser, base, wrong) {
  const page = await browser.newPage();
  await page.goto(`${base}/?range=all`, { waitUntil: "load" });
  let opened = 0;
  page.on("framenavigated", () => opened++);
  const sum = () => page.$$eval('[data-is="requests"]', (all) => all.reduce((sum, it) => sum + Number(it.innerText.replaceAll(",", "")), 0));
  const before = await sum();
  let now = before;
  for (let n = 0; n < 60 && now === before; n++) {
    await new Promise((done) => setTimeout(done, 500));
    now = await sum();
  }
  if (!(now > before) || opened > 0) wrong.push(`live: ${before} requests, then ${now}; ${opened} pages were opened`);
  await page.close();
  return `an open page grew from ${before} to ${now} requests by itself`;
}

/** What the help says of keys is so: rows by j and k, one of them opened by o, the filter by /, places by g. */
export async function keys(browser, base, wrong) {
  const page = await browser.newPage();
  await page.goto(`${base}/?range=all`, { waitUntil: "load" });
  const at = () => page.$$eval("table.rows tbody tr", (all) => all.findIndex((it) => "at" in it.dataset));
  const is = (what, found, expected) => { if (found !== expected) wrong.push(`keys: ${what}: ${found}, not ${expected}`); };
  await page.keyboard.press("p");
  for (const [key, expected] of [["j", 0], ["j", 1], ["k", 0]]) {
    await page.keyboard.press(key);
    is(key, await at(), expected);
  }
  await page.keyboard.press("/");
  await page.keyboard.type("catalog");
  const rows = await page.$$eval("table.rows tbody tr", (all) => all.filter((it) => !it.hidden).map((it) => it.innerText.includes("catalog")));
  is("/", rows.length > 0 && rows.every(Boolean), true);
  await page.keyboard.press("Escape");
  await page.evaluate(() => document.activeElement?.blur());
  const theme = await page.evaluate(() => document.documentElement.dataset.theme);
  await page.keyboard.press("t");
  is("t", await page.evaluate(() => document.documentElement.dataset.theme) !== theme, true);
  await page.keyboard.press("?");
  is("?", await page.$eval("dialog", (it) => it.open), true);
  await page.keyboard.press("Escape");
  await page.keyboard.press("j");
  await Promise.all([page.waitForNavigation({ timeout: 10_000 }), page.keyboard.press("o")]);
  is("o", new URL(page.url()).pathname.startsWith("/services/"), true);
  await page.close();
  return "rows, filter, colours, help and the opened row by their keys";
}

/** Whatever can be pressed on a screen is reached by the Tab key alone. Returns how many. */
export async function keyboard(browser, base, screens, wrong) {
  let reached = 0;
  for (const path of screens) {
    const page = await browser.newPage();
    await page.setViewport({ width: 1280, height: 900 });
    await page.goto(base + path, { waitUntil: "load" });
    // What is refreshed meanwhile would be new elements: the page pauses by its own key.
    await page.evaluate(() => document.activeElement?.blur());
    await page.keyboard.press("p");
    const all = await page.evaluate(() => {
      const can = "a[href], button, input:not([type=hidden]), select, summary, iframe, [tabindex='0']";
      window.expected = new Set([...document.querySelectorAll(can)].filter((it) => it.checkVisibility() && !it.disabled));
      window.got = new Set();
      return window.expected.size;
    });
    let left = all;
    for (let n = 0; n < all + 80 && left > 0; n++) {
      await page.keyboard.press("Tab");
      left = await page.evaluate(() => {
        window.got.add(document.activeElement);
        return [...window.expected].filter((it) => !window.got.has(it)).length;
      });
    }
    reached += all - left;
    if (left > 0 || all === 0)
      wrong.push(`keyboard: ${path}: ${await page.evaluate(() => [...window.expected].filter((it) => !window.got.has(it)).map((it) => it.outerHTML.slice(0, 90)).slice(0, 4).join(" | "))} are not reached`);
    await page.close();
  }
  return reached;
}
