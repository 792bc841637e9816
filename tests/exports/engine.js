// Perfetto's trace processor, which its web page runs in a worker: requests come on standard input, replies leave on
// standard output, both as the bytes of TraceProcessorRpcStream messages. The argument is the folder it lies in.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const { argv, exit } = process;
const folder = argv[2];
const requests = new Uint8Array(fs.readFileSync(0));

process.on("uncaughtException", (error) => {
  // Not what Node would print: the source is one line of 150 kB.
  fs.writeSync(2, String(error.message));
  exit(1);
});

// A worker loads its WebAssembly with a synchronous request.
class FileRequest {
  open(method, url) {
    this.data = fs.readFileSync(path.join(folder, path.basename(url)));
  }
  send() {
    this.response = this.data.buffer.slice(this.data.byteOffset, this.data.byteOffset + this.data.length);
  }
}

function writeAll(bytes) {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(1, bytes, done);
}

const port = { postMessage: writeAll };
Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: Object,
  XMLHttpRequest: FileRequest,
  importScripts: () => {},
  location: { href: "file:///engine_bundle.js" },
  console: { log: () => {}, warn: () => {}, error: () => {} },
  // The bundle refuses to run in Node.
  process: undefined,
});
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
setTimeout(() => {
  self.onmessage({ data: port });
  port.onmessage({ data: requests });
}, 0);
