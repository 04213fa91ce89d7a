// Answers of @devcontainers/cli: reads a JSON list of project directories from stdin, and writes a
// JSON list of what `devcontainer read-configuration` says of each, null if it refuses the file.
// The program is compiled once and run once per directory in this process, because a start of its
// own takes it longer than all the rest. Each run has a `process` of its own.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const [program, docker] = process.argv.slice(2);
const names = 'exports, require, module, __filename, __dirname, process';
const source = `(function (${names}) {${fs.readFileSync(program, 'utf8')}\n})`;
const script = new vm.Script(source, { filename: program });
const load = require('module').createRequire(program);

// Variables of an environment are text: as JavaScript writes it.
function writeText(values) {
  const isTable = values && typeof values === 'object' && !Array.isArray(values);
  return isTable ? Object.fromEntries(Object.entries(values).map(([name, value]) => [name, String(value)])) : values;
}

function ask(directory) {
  return new Promise((resolve) => {
    let output = '';
    function write(text, written) {
      output += text;
      if (written) written();
      return true;
    }
    function exit(code) {
      const found = code ? null : JSON.parse(output).configuration;
      resolve(found && {
        ...found, containerEnv: writeText(found.containerEnv), remoteEnv: writeText(found.remoteEnv),
      });
    }
    const options = ['--workspace-folder', directory, '--docker-path', docker];
    const own = {
      argv: [process.argv[0], program, 'read-configuration', ...options],
      exit,
      stdout: { write, on() {}, columns: 80, rows: 24 },
      stderr: { write: () => true, on() {} },
    };
    const view = new Proxy(process, {
      get: (target, name) => (name in own ? own[name] : Reflect.get(target, name)),
    });
    const module = { exports: {} };
    script.runInThisContext()(module.exports, load, module, program, path.dirname(program), view);
  });
}

async function main() {
  const answers = [];
  for (const directory of JSON.parse(fs.readFileSync(0, 'utf8'))) answers.push(await ask(directory));
  process.stdout.write(JSON.stringify(answers), () => process.exit(0));
}
main();
