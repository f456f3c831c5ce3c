// Checks the official JavaScript client against a running server, with the plan and report of guests.py.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, text] = process.argv.slice(2);
const plan = JSON.parse(text);
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const { OpenAI } = require("openai");

const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.";
const STORY = "Tell me a long story about a dragon and a fox.";

const turn = (content) => [{ role: "user", content }];
const client = (options = {}) => new OpenAI({ baseURL: plan.url, apiKey: "none", maxRetries: 0, ...options });
const create = (fields, options) =>
  client(options).chat.completions.create({ model: plan.model, messages: turn(QUESTION), ...fields });
const ask = async (fields) => (await create(fields)).choices.map((choice) => choice.message.content);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function same(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

async function caught(fields, options) {
  try {
    await create(fields, options);
  } catch (error) {
    if (error instanceof OpenAI.APIError) return [error.status, error.param ?? null];
    throw error;
  }
  return [200, null];
}

async function countRunning() {
  const response = await fetch(plan.url.replace(/\/v1$/, "/metrics"));
  const lines = (await response.text()).split("\n").filter((line) => line.startsWith("parallax_requests_running{"));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
}

async function untilIdle() {
  const deadline = Date.now() + 5000;
  while (await countRunning()) {
    if (Date.now() > deadline) throw new Error("the server still generates");
    await pause(50);
  }
}

const checks = {
  async whole() {
    same(await ask({ temperature: 0 }), [ANSWER]);
  },
  async stream() {
    const pieces = [];
    for await (const event of await create({ temperature: 0, stream: true })) {
      pieces.push(event.choices[0].delta.content ?? "");
    }
    same(pieces.join(""), ANSWER);
    same(pieces.filter(Boolean).length > 5, true);
  },
  async usage() {
    let last;
    for await (last of await create({ temperature: 0, stream: true, stream_options: { include_usage: true } }));
    same([last.choices, last.usage.completion_tokens], [[], 8]);
  },
  async n() {
    const texts = await ask({ n: 3, temperature: 1, seed: 5, max_tokens: 8 });
    same([texts.length, new Set(texts).size > 1], [3, true]);
  },
  async seed() {
    const drawn = [];
    for (const seed of [1, 1, 2]) drawn.push((await ask({ temperature: 1, seed, max_tokens: 12 }))[0]);
    same([drawn[0] === drawn[1], drawn[0] === drawn[2]], [true, false]);
  },
  async stop() {
    same(await ask({ temperature: 0, stop: [" Paris"] }), ["The capital of France is"]);
  },
  async logprobs() {
    const { content } = (await create({ temperature: 0, logprobs: true, top_logprobs: 3 })).choices[0].logprobs;
    same(content.map((entry) => entry.token).join(""), ANSWER);
    same(content.every((entry) => entry.top_logprobs.length === 3), true);
  },
  async completions() {
    const prompt = "The capital of France is";
    const fields = { model: plan.model, prompt, max_tokens: 1, temperature: 0, echo: true, logprobs: 1 };
    const { choices } = await client().completions.create(fields);
    same([choices[0].text, choices[0].logprobs.tokens.at(-1)], [`${prompt} Paris`, " Paris"]);
  },
  async models() {
    const names = [];
    for await (const model of client().models.list()) names.push(model.id);
    same(names, [plan.model]);
  },
  async bad_field() {
    same(await caught({ temperature: 9 }), [400, "temperature"]);
  },
  async unknown_model() {
    same((await caught({ model: "other" }))[0], 404);
  },
  async wrong_key() {
    same((await caught({}, { baseURL: plan.guarded, apiKey: "wrong" }))[0], 401);
  },
  async cancel() {
    const stream = await create({ messages: turn(STORY), stream: true, max_tokens: 2000 });
    for await (const _ of stream) {
      same(await countRunning(), 1);
      break; // leaving the loop ends the request
    }
    await untilIdle();
  },
  async timeout() {
    const late = create({ messages: turn(STORY), max_tokens: 2000 }, { timeout: 1000 });
    const name = await late.then(() => "answered", (error) => error.constructor.name);
    same(name, "APIConnectionTimeoutError");
    await untilIdle();
  },
  async retries() {
    const guarded = (maxRetries) =>
      create({ max_tokens: 1 }, { baseURL: plan.guarded, apiKey: plan.key, maxRetries });
    const flood = async () => {
      for (let turn = 0; turn < 3 * plan.rate; turn++) await guarded(0);
    };
    same(await flood().then(() => "no request was refused", (error) => error.status), 429);
    await guarded(3);
  },
};

const found = {};
for (const [name, check] of Object.entries(checks)) {
  found[name] = await check().then(() => "", (error) => `${error.constructor.name}: ${error.message}`.slice(0, 300));
}
const { version } = JSON.parse(readFileSync(`${folder}/node_modules/openai/package.json`, "utf8"));
console.log(JSON.stringify({ client: "openai (npm)", version, checks: found }));
