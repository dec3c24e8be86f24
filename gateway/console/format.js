// Formats the modules of the console with TypeScript's own formatter (Debian: node-typescript):
//   node gateway/console/format.js          lists files that are not formatted, and fails if there are any
//   node gateway/console/format.js --write  formats them
// Lines are at most 130 characters long; the formatter does not break them, so a longer one is an error.
"use strict";
const fs = require("fs");
const path = require("path");
const ts = require("/usr/share/nodejs/typescript");

const maxLine = 130;
const folder = path.join(__dirname, "assets");
const files = fs.readdirSync(folder).filter((f) => f.endsWith(".js")).map((f) => path.join(folder, f));
const host = {
  getCompilationSettings: () => ({ allowJs: true }),
  getScriptFileNames: () => files,
  getScriptVersion: () => "1",
  getScriptSnapshot: (file) => ts.ScriptSnapshot.fromString(fs.readFileSync(file, "utf8")),
  getCurrentDirectory: () => folder,
  getDefaultLibFileName: () => "lib.d.ts",
  fileExists: () => false,
  readFile: () => undefined,
};
const service = ts.createLanguageService(host, undefined, ts.LanguageServiceMode.Syntactic);
const options = { ...ts.getDefaultFormatCodeSettings("\n"), indentSize: 2, tabSize: 2, semicolons: "insert" };

let faults = 0;
for (const file of files) {
  let text = fs.readFileSync(file, "utf8");
  const edits = service.getFormattingEditsForDocument(file, options).sort((a, b) => b.span.start - a.span.start);
  for (const { span, newText } of edits) text = text.slice(0, span.start) + newText + text.slice(span.start + span.length);
  if (text !== fs.readFileSync(file, "utf8")) {
    if (process.argv[2] === "--write") fs.writeFileSync(file, text);
    else {
      console.log(`${file}: not formatted (node gateway/console/format.js --write)`);
      faults++;
    }
  }
  text.split("\n").forEach((line, i) => {
    if (line.length <= maxLine) return;
    console.log(`${file}:${i + 1}: ${line.length} characters, the limit is ${maxLine}`);
    faults++;
  });
}
process.exit(faults ? 1 : 0);
