// Files in onnxruntime-node or onnxruntime-web: node engines.js SCRIPT FOLDER NUMBER...
const fs = require('fs');
const [script, folder, ...numbers] = process.argv.slice(2);
const ort = require(script);
if (ort.env && ort.env.wasm) ort.env.wasm.numThreads = 1;

const TYPES = {float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array,
  int8: Int8Array, uint8: Uint8Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array};

function tensor({type, dims, base64}) {
  const bytes = Uint8Array.from(Buffer.from(base64, 'base64'));
  return new ort.Tensor(type, new TYPES[type](bytes.buffer), dims);
}

function encoded({type, dims, data}) {
  return {type, dims, base64: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString('base64')};
}

async function run(entry) {
  const session = await ort.InferenceSession.create(fs.readFileSync(entry.path), {
    executionProviders: [script.includes('web') ? 'wasm' : 'cpu'], intraOpNumThreads: 1, logSeverityLevel: 4});
  const feeds = Object.fromEntries(Object.entries(entry.feeds).map(([name, value]) => [name, tensor(value)]));
  const results = await session.run(feeds);
  return {outputs: Object.fromEntries(Object.entries(results).map(([name, value]) => [name, encoded(value)]))};
}

(async () => {
  for (const number of numbers) {
    let answer;
    try {
      answer = await run(JSON.parse(fs.readFileSync(`${folder}/${number}.json`)));
    } catch (error) {
      answer = {refused: String(error.message || error).split('\n')[0].slice(0, 200)};
    }
    fs.writeFileSync(`${folder}/${number}.out.json`, JSON.stringify(answer));
  }
  process.exit(0);
})();
