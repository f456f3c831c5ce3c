// Checks Vercel's AI SDK and Anthropic's JavaScript client, with the plan and report of guests.py.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, library, text] = process.argv.slice(2);
const plan = JSON.parse(text);
const root = pathToFileURL(`${folder}/package.json`);
const require = createRequire(root);
const load = async (name) => require(name);

const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.";
const ASK_TOOL = "Use the tool to find the capital of France.";
const ASK_CITY = "Which city is the capital of France? Answer as JSON.";
const TOOL = "capital_of";
const COUNTRY = {
  type: "object",
  properties: { country: { enum: ["France", "Italy"] } },
  required: ["country"],
  additionalProperties: false,
};
const CITY = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] }, is_capital: { type: "boolean" } },
  required: ["city", "is_capital"],
  additionalProperties: false,
};

function same(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

async function vercel(model) {
  const { generateText, jsonSchema, Output, streamText, tool } = await load("ai");
  const usual = { model, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
  const tools = { [TOOL]: tool({ description: "Find a capital.", inputSchema: jsonSchema(COUNTRY) }) };
  return {
    async whole() {
      same((await generateText({ ...usual, prompt: QUESTION })).text, ANSWER);
    },
    async stream() {
      const pieces = [];
      for await (const piece of streamText({ ...usual, prompt: QUESTION }).textStream) pieces.push(piece);
      same([pieces.join(""), pieces.length > 1], [ANSWER, true]);
    },
    async tool() {
      const { toolCalls } = await generateText({ ...usual, prompt: ASK_TOOL, tools, toolChoice: "required" });
      same([toolCalls[0].toolName, ["France", "Italy"].includes(toolCalls[0].input.country)], [TOOL, true]);
    },
    async streamed_tool() {
      const result = streamText({ ...usual, prompt: ASK_TOOL, tools, toolChoice: { type: "tool", toolName: TOOL } });
      const calls = await result.toolCalls;
      same([calls.length, calls[0].toolName], [1, TOOL]);
    },
    async object() {
      const output = Output.object({ schema: jsonSchema(CITY) });
      const { output: city } = await generateText({ ...usual, prompt: ASK_CITY, output });
      same([["Paris", "Rome"].includes(city.city), typeof city.is_capital], [true, "boolean"]);
    },
    async tools_and_object() {
      const output = Output.object({ schema: jsonSchema(CITY) });
      for (const prompt of [ASK_CITY, ASK_TOOL]) {
        const found = await generateText({ ...usual, prompt, tools, output });
        if (found.toolCalls.length) same(found.toolCalls[0].toolName, TOOL);
        else same(["Paris", "Rome"].includes(found.output.city), true);
      }
    },
  };
}

async function chat() {
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const options = { name: "parallax", baseURL: plan.url, apiKey: "none", supportsStructuredOutputs: true };
  return vercel(createOpenAICompatible(options)(plan.model));
}

async function messages() {
  const { createAnthropic } = await load("@ai-sdk/anthropic");
  const { object, ...checks } = await vercel(createAnthropic({ baseURL: plan.url, apiKey: "none" })(plan.model));
  return checks;
}

async function anthropic() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: plan.url.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
  const fields = (content, more) => ({
    model: plan.model,
    max_tokens: 200,
    temperature: 0,
    messages: [{ role: "user", content }],
    ...more,
  });
  const tools = [{ name: TOOL, description: "Find a capital.", input_schema: COUNTRY }];
  return {
    async whole() {
      same((await client.messages.create(fields(QUESTION))).content.map((block) => block.text), [ANSWER]);
    },
    async stream() {
      const pieces = [];
      const stream = client.messages.stream(fields(QUESTION)).on("text", (piece) => pieces.push(piece));
      await stream.finalMessage();
      same([pieces.join(""), pieces.length > 1], [ANSWER, true]);
    },
    async tool() {
      const stream = client.messages.stream(fields(ASK_TOOL, { tools, tool_choice: { type: "any" } }));
      const { content, stop_reason } = await stream.finalMessage();
      const call = content.find((block) => block.type === "tool_use");
      same([call.name, ["France", "Italy"].includes(call.input.country), stop_reason], [TOOL, true, "tool_use"]);
    },
    async bad_field() {
      const error = await client.messages.create(fields(QUESTION, { top_k: -2 })).catch((found) => found);
      same([error.status, error.error.error.type], [400, "invalid_request_error"]);
    },
  };
}

const LIBRARIES = {
  "ai-chat": ["ai", chat],
  "ai-messages": ["ai", messages],
  "anthropic-npm": ["@anthropic-ai/sdk", anthropic],
};
const [name, make] = LIBRARIES[library];
const found = {};
for (const [check, run] of Object.entries(await make())) {
  found[check] = await run().then(() => "", (error) => `${error.constructor.name}: ${error.message}`.slice(0, 300));
}
const { version } = JSON.parse(readFileSync(`${folder}/node_modules/${name}/package.json`, "utf8"));
console.log(JSON.stringify({ client: library, version, checks: found }));
