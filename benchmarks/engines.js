// Files in ONNX Runtime for JavaScript. In node: node engines.js SCRIPT FOLDER NUMBER...; engines_browser.py calls `answer`.
const TYPES = {float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array,
  int8: Int8Array, uint8: Uint8Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array};

function bytes(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function encoded({type, dims, data}) {
  const letters = Array.from(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), (x) => String.fromCharCode(x));
  return {type, dims, base64: btoa(letters.join(''))};
}

async function answer(ort, provider, model, inputs) {
  if (ort.env && ort.env.wasm) ort.env.wasm.numThreads = 1;
  try {
    const session = await ort.InferenceSession.create(model, {
      executionProviders: [provider], intraOpNumThreads: 1, logSeverityLevel: 4});
    const feeds = Object.fromEntries(Object.entries(inputs).map(([name, {type, dims, base64}]) =>
      [name, new ort.Tensor(type, new TYPES[type](bytes(base64).buffer), dims)]));
    const results = await session.run(feeds);
    return {outputs: Object.fromEntries(Object.entries(results).map(([name, value]) => [name, encoded(value)]))};
  } catch (error) {
    return {refused: String(error.message || error).split('\n')[0].slice(0, 200)};
  }
}

if (typeof process !== 'undefined') (async () => {
  const fs = require('fs');
  const [script, folder, ...numbers] = process.argv.slice(2);
  const ort = require(script);
  for (const number of numbers) {
    const {path, feeds} = JSON.parse(fs.readFileSync(`${folder}/${number}.json`));
    const found = await answer(ort, script.includes('web') ? 'wasm' : 'cpu', fs.readFileSync(path), feeds);
    fs.writeFileSync(`${folder}/${number}.out.json`, JSON.stringify(found));
  }
  process.exit(0);
})();
