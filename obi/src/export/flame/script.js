(function () {
	"use strict";
	function by(id) { return document.getElementById(id); }

	var graph = by("graph"), details = by("details"), found = by("found"), field = by("search");
	var note = details.textContent || "Enter or a click zooms in, arrow keys go on, Escape zooms out";
	var LETTER = 7.5, ROW = 17, path = [], rows = [], bars, root, current;

	/* Parents come before their children, and what is on the left before what is on the right. */
	bars = Array.from(graph.children, group => {
		var rect = group.querySelector("rect"), lines = group.querySelector("title").textContent.split("\n");
		var bar = {
			group, rect, text: group.querySelector("text"), name: lines[0], shown: true,
			words: lines[0] + " - " + lines.slice(1).join("; "),
			x: rect.x.baseVal.value, width: rect.width.baseVal.value, y: rect.y.baseVal.value
		};
		root = root || bar;
		bar.depth = Math.round(Math.abs(bar.y - root.y) / ROW);
		bar.parent = path[bar.depth - 1];
		path[bar.depth] = bar;
		rows[bar.depth] = rows[bar.depth] || [];
		bar.place = rows[bar.depth].push(bar) - 1;
		group.setAttribute("role", "button");
		group.bar = bar;
		return bar;
	});
	current = root;
	var growsDown = bars.length > 1 && bars[1].y > root.y;

	function label(bar, x, width) {
		var room = Math.floor((width - 4) / LETTER), letters = Array.from(bar.name);
		if (room < 3 && !bar.text) return;
		if (!bar.text) {
			bar.text = document.createElementNS("http://www.w3.org/2000/svg", "text");
			bar.text.setAttribute("y", bar.y + 12);
			bar.group.appendChild(bar.text);
		}
		bar.text.setAttribute("x", x + 3);
		bar.text.textContent = letters.length <= room ? bar.name : letters.slice(0, room - 2).join("") + "..";
		if (room < 3) bar.text.textContent = "";
	}

	/* The chosen bar takes the whole width; those between it and the root stay, paler. */
	function zoom(chosen) {
		var scale = root.width / Math.max(chosen.width, 0.001), between = new Set();
		for (var bar = chosen.parent; bar; bar = bar.parent) between.add(bar);
		bars.forEach(bar => {
			var beneath = between.has(bar);
			bar.within = bar === chosen || Boolean(bar.parent?.within);
			bar.shown = beneath || bar.within;
			bar.group.style.display = bar.shown ? "" : "none";
			bar.group.classList.toggle("beneath", beneath);
			if (!bar.shown) return;
			var x = beneath ? 0 : (bar.x - chosen.x) * scale;
			var width = beneath || bar === chosen ? root.width : bar.width * scale;
			bar.rect.setAttribute("x", x);
			bar.rect.setAttribute("width", width);
			label(bar, x, width);
		});
		stop(chosen);
	}

	/* The Tab key stops at one bar; from there arrows lead on. */
	function stop(bar) {
		current.group.setAttribute("tabindex", "-1");
		current = bar;
		bar.group.setAttribute("tabindex", "0");
	}

	function go(bar) {
		if (bar) { stop(bar); bar.group.focus(); }
	}

	function widest(list) {
		return list.filter(bar => bar.shown).reduce((best, bar) => best && best.width >= bar.width ? best : bar, null);
	}

	function child(parent) {
		return widest((rows[parent.depth + 1] || []).filter(bar => bar.parent === parent));
	}

	function beside(bar, step) {
		var row = rows[bar.depth], place = bar.place + step;
		while (row[place] && !row[place].shown) place += step;
		return row[place];
	}

	function press(event) {
		var key = event.key;
		if (event.altKey || event.ctrlKey || event.metaKey) return;
		if (key === "Enter" || key === " ") zoom(current);
		else if (key === "ArrowLeft" || key === "ArrowRight") go(beside(current, key === "ArrowLeft" ? -1 : 1));
		else if (key === "ArrowUp" || key === "ArrowDown") go((key === "ArrowDown") === growsDown ? child(current) : current.parent);
		else if (key === "Home") go(root);
		else return;
		event.preventDefault();
	}

	/* Marks what is found; the widest of it comes back. */
	function search(pattern) {
		var wanted = null, marked = [], sum = 0, end = -1;
		if (pattern) {
			try { wanted = new RegExp(pattern, "i"); } catch (e) { wanted = { test: name => name.includes(pattern) }; }
		}
		bars.forEach(bar => {
			var hit = wanted !== null && wanted.test(bar.name);
			bar.group.classList.toggle("found", hit);
			if (hit) marked.push(bar);
		});
		/* What stands on a bar that counts is in it. */
		marked.sort((a, b) => a.x - b.x || b.width - a.width);
		marked.forEach(bar => {
			if (bar.x + bar.width > end + 0.005) { sum += bar.width; end = bar.x + bar.width; }
		});
		found.textContent = wanted === null ? "" : "found: " + (100 * sum / root.width).toFixed(1) + " %";
		return widest(marked);
	}

	function clear() { field.value = ""; search(""); }

	function of(event) {
		return event.target.bar || event.target.parentNode?.bar;
	}

	function describe(event) {
		var bar = of(event), ends = /out$/.test(event.type);
		if (bar) details.textContent = ends ? note : bar.words;
	}

	/* Of the document: a group that listens to focus is a stop of the Tab key itself. */
	["mouseover", "mouseout", "focusin", "focusout"].forEach(type => { document.addEventListener(type, describe); });
	graph.addEventListener("keydown", press);
	graph.addEventListener("click", event => {
		var bar = of(event);
		if (bar) { zoom(bar); go(bar); }
	});
	field.addEventListener("input", () => { search(field.value); });
	field.addEventListener("keydown", event => {
		if (event.key === "Enter") go(search(field.value));
	});
	by("reset").addEventListener("click", () => { clear(); zoom(root); });
	window.addEventListener("keydown", event => {
		var types = event.target === field;
		if ((event.ctrlKey && event.key === "f") || (event.key === "/" && !types)) { event.preventDefault(); field.focus(); field.select(); }
		if (event.key !== "Escape") return;
		var inside = types || graph.contains(event.target);
		if (types) clear(); else zoom(root);
		if (inside) go(current);
	});
	/* The page around it says which ground its reader has chosen. */
	window.addEventListener("message", event => {
		var media = { dark: "all", light: "not all" }[event.data];
		if (media) by("dark").sheet.cssRules[0].media.mediaText = media;
	});
	details.textContent = note;
	by("controls").removeAttribute("display");
})();
