(function () {
"use strict";
var root = document.documentElement, REFRESH = 10000;
var store = { get: function (k) { try { return localStorage.getItem(k); } catch (e) { return null; } },
	set: function (k, v) { try { v ? localStorage.setItem(k, v) : localStorage.removeItem(k); } catch (e) { return; } } };
var theme = store.get("theme");
if (theme) root.dataset.theme = theme;

function dark() {
	return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
function turn() {
	root.dataset.theme = dark() ? "light" : "dark";
	store.set("theme", root.dataset.theme);
	document.querySelectorAll(".flame").forEach(tint);
}
/* A picture in a sandbox knows the system's theme, and not the one that was chosen here. */
function tint(it) { if (root.dataset.theme) it.contentWindow.postMessage(root.dataset.theme, "*"); }
document.addEventListener("load", function (e) { if (e.target.matches && e.target.matches(".flame")) tint(e.target); }, true);
function button(text, title, act) {
	var it = document.createElement("button");
	it.type = "button"; it.textContent = text; it.title = title; it.setAttribute("aria-label", title);
	it.addEventListener("click", act);
	return it;
}
function two(n) { return (n < 10 ? "0" : "") + n; }
function clock(d) { return two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds()); }
function zone(d) {
	var m = -d.getTimezoneOffset(), a = Math.abs(m);
	return m === 0 ? "UTC" : (m < 0 ? "-" : "+") + two(Math.floor(a / 60)) + ":" + two(a % 60);
}
function ago(ms) {
	var s = Math.max(0, Math.round(ms / 1000));
	return s < 90 ? s + " s ago" : s < 5400 ? Math.round(s / 60) + " min ago" : s < 172800 ? Math.round(s / 3600) + " h ago" : Math.round(s / 86400) + " d ago";
}
function times(part) {
	part.querySelectorAll("time[datetime]").forEach(function (it) {
		var d = new Date(it.getAttribute("datetime"));
		if (isNaN(d)) return;
		var day = d.getFullYear() + "-" + two(d.getMonth() + 1) + "-" + two(d.getDate());
		it.textContent = day + " " + clock(d) + " " + zone(d);
		it.title = ago(Date.now() - d) + ", " + d.toISOString();
	});
	part.querySelectorAll("[data-clock]").forEach(function (it) {
		var d = new Date(it.dataset.clock);
		if (!isNaN(d)) it.textContent = clock(d) + (it.dataset.zone ? " " + zone(d) : "");
	});
}

var filter, said, live = true;
function sift(event) {
	if (!filter) return;
	var text = filter.value.toLowerCase(), shown = 0;
	document.querySelectorAll("#rows tbody tr").forEach(function (row) {
		row.hidden = text !== "" && row.firstElementChild.textContent.toLowerCase().indexOf(text) < 0;
		shown += row.hidden ? 0 : 1;
	});
	if (event && said) said.textContent = shown + " shown";
}

function busy() {
	var at = document.activeElement;
	return document.hidden || !live || document.querySelector("dialog[open], details.profile[open]") ||
		String(getSelection()) !== "" || (at && at.closest("[data-live]"));
}
function refresh() {
	if (!document.querySelector("[data-live]") || busy()) return Promise.resolve();
	return fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" }).then(function (answer) {
		if (!answer.ok) throw new Error(answer.status);
		return answer.text();
	}).then(function (text) {
		if (busy()) return;
		var page = new DOMParser().parseFromString(text, "text/html");
		document.querySelectorAll("[data-live]").forEach(function (part) {
			var next = page.querySelector('[data-live="' + part.dataset.live + '"]');
			if (!next) return;
			next = document.importNode(next, true);
			times(next);
			if (next.innerHTML === part.innerHTML) return;
			var left = Array.prototype.map.call(part.querySelectorAll(".wide"), function (it) { return it.scrollLeft; });
			part.replaceWith(next);
			next.querySelectorAll(".wide").forEach(function (it, n) { it.scrollLeft = left[n] || 0; });
		});
		mark(current);
		sift();
		said.textContent = clock(new Date());
		said.className = "";
	}).catch(function () {
		said.textContent = "no answer since " + (said.dataset.last || "the page was opened");
		said.className = "bad";
	}).then(function () { if (said.className === "") said.dataset.last = said.textContent; });
}

var current = -1;
function rows() {
	return Array.prototype.filter.call(document.querySelectorAll("table.rows tbody tr"), function (row) { return !row.hidden; });
}
function mark(n) {
	document.querySelectorAll("tr[data-at]").forEach(function (row) { delete row.dataset.at; });
	var all = rows();
	if (n < 0 || !all.length) return;
	current = Math.min(n, all.length - 1);
	all[current].dataset.at = "";
	return all[current];
}
function move(step) {
	var row = mark(Math.max(0, current + step));
	if (row) row.scrollIntoView({ block: "nearest" });
}
function open() {
	var row = rows()[current], link = row && row.querySelector("a[href]");
	if (link) location.href = link.href;
}

var KEYS = [["/", "filter"], ["j k", "next, previous row"], ["o", "open the row"], ["e", "only errors"], ["g s", "services"],
	["g p", "spans"], ["g o", "objectives"], ["g m", "map"], ["g a", "agent"], ["t", "light or dark"], ["p", "pause or go on"], ["?", "this help"], ["drag", "over durations: the spans of that time as slow as the box, or slower"]];
var GO = { s: "", p: "spans", o: "slos", m: "map", a: "agent" };
function go(part) { location.href = document.querySelector("a.mark").getAttribute("href") + part; }
function help() {
	var box = document.querySelector("dialog");
	if (!box) {
		box = document.createElement("dialog");
		var head = document.createElement("b"), list = document.createElement("dl");
		head.textContent = "Keys";
		KEYS.forEach(function (pair) {
			var key = document.createElement("dt"), what = document.createElement("dd"), cap = document.createElement("kbd");
			cap.textContent = pair[0]; what.textContent = pair[1];
			key.append(cap); list.append(key, what);
		});
		box.append(head, list, button("Close", "Close", function () { box.close(); }));
		document.body.append(box);
	}
	if (box.open) box.close(); else box.showModal();
}
function pause() {
	live = !live;
	said.textContent = live ? "live" : "paused";
}
function errors() {
	var box = document.querySelector('input[name="errors"]'), choice = document.querySelector('select[name="error"]');
	if (box) { box.checked = !box.checked; box.form.requestSubmit(); }
	else if (choice) { choice.value = choice.value === "true" ? "" : "true"; choice.form.requestSubmit(); }
}

/* A box over durations leads to the spans of its time that took as long as its lower edge, or longer. */
function drag(event) {
	var svg = event.target.closest("svg[data-spans]");
	if (!svg || event.button || event.pointerType !== "mouse" || event.target.closest("a")) return;
	event.preventDefault();
	var place = function (e) { return new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse()); };
	var from = place(event), box = document.createElementNS(svg.namespaceURI, "rect");
	box.setAttribute("class", "drag");
	svg.append(box);
	var draw = function (e) {
		var to = place(e);
		box.setAttribute("x", Math.min(from.x, to.x)); box.setAttribute("width", Math.abs(from.x - to.x));
		box.setAttribute("y", Math.min(from.y, to.y)); box.setAttribute("height", Math.abs(from.y - to.y));
	};
	addEventListener("pointermove", draw);
	addEventListener("pointerup", function (e) {
		var to = place(e), low = Math.max(from.y, to.y), tall = Math.abs(from.y - to.y), of = svg.dataset;
		var at = function (x) { return Math.round(+of.from + (of.to - of.from) * Math.min(1, Math.max(0, (x - of.left) / of.wide))); };
		removeEventListener("pointermove", draw);
		box.remove();
		if (tall < 6) return;
		var ms = Math.pow(2, (of.high - low / of.tall) / 2) * 1000;
		go(of.spans + "&min_duration_ms=" + Number(ms.toPrecision(3)) + "&from=" + at(Math.min(from.x, to.x)) + "&to=" + (at(Math.max(from.x, to.x)) + 1));
	}, { once: true });
}

var going = 0;
function press(event) {
	var at = event.target, typing = /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName) && at.type !== "checkbox";
	if (event.ctrlKey || event.metaKey || event.altKey) return;
	if (typing) { if (event.key === "Escape") at.blur(); return; }
	var key = event.key;
	if (Date.now() - going < 1500 && GO[key] !== undefined) { go(GO[key]); return; }
	going = key === "g" ? Date.now() : 0;
	if (key === "/") { var box = filter || document.querySelector("form input"); if (box) { event.preventDefault(); box.focus(); box.select(); } }
	else if (key === "j") move(1);
	else if (key === "k") move(-1);
	else if (key === "o") open();
	else if (key === "e") errors();
	else if (key === "t") turn();
	else if (key === "p") pause();
	else if (key === "?") help();
}

document.addEventListener("DOMContentLoaded", function () {
	filter = document.querySelector("[data-filter]");
	if (filter) filter.addEventListener("input", sift);
	var box = document.querySelector('input[name="errors"]');
	if (box) box.addEventListener("change", function () { box.form.requestSubmit(); });
	times(document);
	var tools = document.getElementById("tools");
	said = document.createElement("span");
	tools.append(said);
	if (document.querySelector("[data-live]")) {
		said.textContent = "live"; said.title = "Refreshed every 10 s; p pauses";
		(function again() { setTimeout(function () { refresh().then(again, again); }, REFRESH); })();
	}
	tools.append(button("◐", "Light or dark (t)", turn), button("?", "Keys (?)", help));
	document.addEventListener("keydown", press);
	document.addEventListener("pointerdown", drag);
});
})();
