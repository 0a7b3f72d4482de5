'use strict';
// Towers of functions that never mix, with names that only this run knows.
//
// Each tower is a chain of functions in a file of its own; the last one works. What calls the next is drawn at
// random: a plain call, a closure, a method, an async function, a generator, functions of the language, code that was
// a text. Prints every tower, outermost function first, as `name@file:line`, then `ready`, and works in all of them
// in turn, from the event loop and from promises, until it is killed. Node 18 and later.

const { randomInt } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const DEPTHS = [5, 20, 60];
const WAYS = [
  'plain', 'plain', 'arrow', 'closure', 'method', 'static', 'async', 'generator', 'mapped', 'sorted', 'replaced',
  'parsed', 'made', 'text', 'bound', 'applied', 'assigned', 'reader',
];
const NO_NAME = '(anonymous)';
const BUSY_MS = 20;

function draw() {
  return Array.from({ length: 12 }, () => String.fromCharCode(97 + randomInt(26))).join('');
}

class Tower {
  constructor(folder, depth) {
    this.names = Array.from({ length: depth }, draw);
    this.file = path.join(folder, `${this.names[0]}.js`);
    this.lines = ["'use strict';"];
    this.truth = [];
    this.names.slice(0, -1).forEach((own, at) => {
      this[WAYS[randomInt(WAYS.length)]](own, this.names[at + 1]);
    });
    this.says(this.names[depth - 1]);
    this.lines.push(
      `function ${this.names[depth - 1]}(n) {`, '  let sum = 0;', '  for (let i = 0; i < 300; i++)',
      '    sum = (sum + i) ^ n;', '  return sum;', '}', `module.exports = ${this.names[0]};`,
    );
    fs.writeFileSync(this.file, this.lines.join('\n'));
  }

  // The next line is a function's first.
  says(name, file = this.file, line = this.lines.length + 1) {
    this.truth.push(`${name}@${file}:${line}`);
  }

  body(head, name, expression, tail = '}') {
    this.says(name);
    this.lines.push(head, `  return ${expression};`, tail);
  }

  plain(own, next) { this.body(`function ${own}(n) {`, own, `${next}(n) + 1`); }

  arrow(own, next) { this.body(`const ${own} = (n) => {`, own, `${next}(n) + 1`, '};'); }

  closure(own, next) { this.body(`const ${own} = ((k) => function ${own}(n) {`, own, `${next}(n) + k`, '})(1);'); }

  method(own, next) {
    this.body(`function ${own}(n) {`, own, `${own}_object.${own}_method(n)`);
    this.lines.push(`const ${own}_object = new (class {`);
    this.body(`  ${own}_method(n) {`, `${own}_method`, `${next}(n)`);
    this.lines.push('})();');
  }

  static(own, next) {
    this.body(`function ${own}(n) {`, own, `${own}_Class.${own}_method(n)`);
    this.lines.push(`class ${own}_Class {`);
    this.body(`  static ${own}_method(n) {`, `${own}_method`, `${next}(n)`);
    this.lines.push('}');
  }

  async(own, next) {
    this.lines.push(`let ${own}_result = 0;`);
    this.body(`function ${own}(n) {`, own, `${own}_async(n), ${own}_result`);
    this.body(`async function ${own}_async(n) {`, `${own}_async`, `${own}_result = ${next}(n)`);
  }

  generator(own, next) {
    this.body(`function ${own}(n) {`, own, `${own}_made(n).next().value`);
    this.says(`${own}_made`);
    this.lines.push(`function* ${own}_made(n) {`, `  yield ${next}(n);`, '}');
  }

  mapped(own, next) {
    this.body(`function ${own}(n) {`, own, `[n].map(`, '');
    this.lines.splice(-2, 2, '  return [n].map(');
    this.says(NO_NAME);
    this.lines.push(`    (m) => ${next}(m))[0];`, '}');
  }

  sorted(own, next) {
    this.body(`function ${own}(n) {`, own, `[n, n + 1].sort(${own}_order)[0]`);
    this.body(`function ${own}_order(a, b) {`, `${own}_order`, `${next}(a) * 0 + a - b`);
  }

  replaced(own, next) {
    this.body(`function ${own}(n) {`, own, `'x'.replace(/x/, ${own}_called).length`);
    this.body(`function ${own}_called() {`, `${own}_called`, `String(${next}(1))`);
  }

  parsed(own, next) {
    this.body(`function ${own}(n) {`, own, `JSON.parse('1', ${own}_reviver)`);
    this.body(`function ${own}_reviver() {`, `${own}_reviver`, `${next}(1)`);
  }

  made(own, next) {
    this.body(`function ${own}(n) {`, own, `new ${own}_Class(n).n`);
    this.lines.push(`class ${own}_Class {`);
    this.says(`${own}_Class`);
    this.lines.push('  constructor(n) {', `    this.n = ${next}(n);`, '  }', '}');
  }

  text(own, next) {
    this.says(own, '', 2);
    this.lines.push(`const ${own} = eval("\\n(function ${own}(n) { return ${next}(n) + 1; })");`);
  }

  bound(own, next) {
    this.lines.push(`const ${own} = ${own}_target.bind(null, 1);`);
    this.body(`function ${own}_target(one, n) {`, `${own}_target`, `${next}(n) + one`);
  }

  applied(own, next) {
    this.body(`function ${own}(n) {`, own, `${own}_target.apply(null, [n])`);
    this.body(`function ${own}_target(n) {`, `${own}_target`, `Reflect.apply(${next}, null, [n])`);
  }

  // It has no name of its own: V8 calls it by what it is assigned to.
  assigned(own, next) {
    this.lines.push(`const ${own}_object = {};`);
    this.body(`${own}_object.${own}_field = function (n) {`, `${own}_object.${own}_field`, `${next}(n) + 1`, '};');
    this.body(`function ${own}(n) {`, own, `${own}_object.${own}_field(n)`);
    // It is called by the other.
    const [field, caller] = this.truth.splice(-2);
    this.truth.push(caller, field);
  }

  reader(own, next) {
    this.body(`function ${own}(n) {`, own, `${own}_object.${own}_value`);
    this.lines.push(`const ${own}_object = {`);
    this.body(`  get ${own}_value() {`, `${own}_value`, `${next}(1)`, '  },');
    this.lines.push('};');
  }
}

function spin(outermost) {
  const until = performance.now() + BUSY_MS;
  while (performance.now() < until) {
    for (const call of outermost) {
      for (let n = 0; n < 20; n++) {
        call(n);
      }
    }
  }
}

async function work(outermost) {
  for (;;) {
    await new Promise(setImmediate);
    spin(outermost);
    await null;
    spin(outermost);
  }
}

function main() {
  const towers = DEPTHS.map((depth) => new Tower(process.argv[2], depth));
  for (const tower of towers) {
    console.log(`tower ${tower.truth.join(' ')}`);
  }
  console.log(`ready ${process.version}`);
  const outermost = towers.map((tower) => require(tower.file));
  setImmediate(function turn() {
    spin(outermost);
    setImmediate(turn);
  });
  work(outermost);
}

main();
