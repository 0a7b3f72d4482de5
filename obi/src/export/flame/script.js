(function () {
	"use strict";
	var graph = document.getElementById("graph"), details = document.getElementById("details");
	var found = document.getElementById("found"), note = details.textContent, LETTER = 7.5;
	var bars = Array.prototype.map.call(graph.children, function (group) {
		var rect = group.querySelector("rect"), title = group.querySelector("title").textContent;
		var lines = title.split("\n");
		return {
			group: group, rect: rect, text: group.querySelector("text"), name: lines[0],
			words: lines[0] + " - " + lines.slice(1).join("; "),
			x: +rect.getAttribute("x"), width: +rect.getAttribute("width"), y: +rect.getAttribute("y")
		};
	});
	if (!bars.length) return;
	var whole = bars[0].width;

	function label(bar, x, width) {
		var room = Math.floor((width - 4) / LETTER);
		if (room < 3) {
			if (bar.text) bar.text.textContent = "";
			return;
		}
		if (!bar.text) {
			bar.text = document.createElementNS("http://www.w3.org/2000/svg", "text");
			bar.text.setAttribute("y", bar.y + 12);
			bar.group.appendChild(bar.text);
		}
		var letters = Array.from(bar.name);
		bar.text.setAttribute("x", x + 3);
		bar.text.textContent = letters.length <= room ? bar.name : letters.slice(0, room - 2).join("") + "..";
	}

	/* The chosen bar takes the whole width; those that it stands on stay, paler. */
	function zoom(chosen) {
		var slack = 0.005, scale = whole / chosen.width, end = chosen.x + chosen.width;
		bars.forEach(function (bar) {
			var beneath = bar.y > chosen.y && bar.x <= chosen.x + slack && bar.x + bar.width >= end - slack;
			var above = bar.y <= chosen.y && bar.x >= chosen.x - slack && bar.x + bar.width <= end + slack;
			bar.group.style.display = beneath || above ? "" : "none";
			bar.group.classList.toggle("beneath", beneath);
			if (!beneath && !above) return;
			var x = beneath ? 0 : (bar.x - chosen.x) * scale, width = beneath ? whole : bar.width * scale;
			bar.rect.setAttribute("x", x);
			bar.rect.setAttribute("width", width);
			label(bar, x, width);
		});
	}

	function search(pattern) {
		var wanted = null, marked = [], sum = 0;
		if (pattern) {
			try { wanted = new RegExp(pattern, "i"); } catch (error) { wanted = { test: function (name) { return name.indexOf(pattern) >= 0; } }; }
		}
		bars.forEach(function (bar) {
			var hit = wanted !== null && wanted.test(bar.name);
			bar.group.classList.toggle("found", hit);
			if (hit) marked.push(bar);
		});
		/* What lies on a bar that counts is in it. */
		marked.sort(function (a, b) { return a.x - b.x || b.width - a.width; });
		var end = -1;
		marked.forEach(function (bar) {
			if (bar.x + bar.width > end + 0.005) { sum += bar.width; end = bar.x + bar.width; }
		});
		found.textContent = wanted === null ? "" : "found: " + (100 * sum / whole).toFixed(1) + " %";
	}

	function ask() {
		var pattern = prompt("Functions (regular expression)", "");
		if (pattern !== null) search(pattern);
	}

	bars.forEach(function (bar) {
		bar.rect.addEventListener("click", function () { zoom(bar); });
		bar.rect.addEventListener("mouseover", function () { details.textContent = bar.words; });
		bar.rect.addEventListener("mouseout", function () { details.textContent = note; });
	});
	document.getElementById("search").addEventListener("click", ask);
	document.getElementById("reset").addEventListener("click", function () { zoom(bars[0]); search(""); });
	window.addEventListener("keydown", function (event) {
		if ((event.ctrlKey && event.key === "f") || event.key === "/") { event.preventDefault(); ask(); }
		if (event.key === "Escape") zoom(bars[0]);
	});
})();
