// One process of one peer in JavaScript: what run_peer.py does, word for word where the language allows.
//
//     node --expose-gc run_peer.mjs drive_pi.mjs FOLDER W1 10000
//
// A driver exports packages, and prepare(folder) that gives play(turns, suspend): the events of one run.

import { existsSync, readFileSync, writeFileSync } from "node:fs";

const PIECE = 8;
const DELTAS_IN_W4 = 20;
const CALLS = 4;
const ARGUMENTS = '{"x": 3}';
const ROUNDS = 5;
const SECONDS_FOR_ROUNDS = 1;
const CHECKED = { W1: 1_000, W2: 10, W3: 1_000, W4: 20 };
// Ten times that of Python, so that what is timed is compiled code.
const WARM_UP = { W1: 10_000, W2: 100, W3: 10_000, W4: 200 };

const pieces = text => Array.from({ length: text.length / PIECE }, (_, at) => text.slice(at * PIECE, (at + 1) * PIECE));
const words = count => ({ pieces: pieces("abcdefgh".repeat(count)) });
const calls = prefix => Array.from({ length: CALLS }, (_, at) => ({ id: `${prefix}-${at}`, name: "noop", pieces: [ARGUMENTS] }));

function turns(workload, size) {
	if (workload === "W1") return [[words(size)]];
	if (workload === "W2") return [...Array.from({ length: size }, (_, turn) => calls(`t${turn}`)), [words(1)]];
	if (workload === "W3") {
		const body = `{"s": "${"x".repeat(PIECE * size - '{"s": ""}'.length)}"}`;
		return [[{ id: "c0", name: "echo", pieces: pieces(body) }], [words(1)]];
	}
	return [[words(DELTAS_IN_W4), ...calls(`r${size}`)], [words(DELTAS_IN_W4)]];
}

const done = { calls: 0 };
const parameters = (name, type) => ({ type: "object", properties: { [name]: { type } }, required: [name] });
const says = text => ({ content: [{ type: "text", text }], details: {} });

const tools = [
	{
		name: "noop", label: "noop", description: "Do nothing.", parameters: parameters("x", "integer"),
		execute: async () => { done.calls++; return says("ok"); },
	},
	{
		name: "echo", label: "echo", description: "Take one long string.", parameters: parameters("s", "string"),
		execute: async (_id, given) => { done.calls++; return says(String(given.s.length)); },
	},
];

const yieldToScheduler = () => new Promise(resolve => setImmediate(resolve));

// Says one turn into the stream that the peer's adapters write: one message that grows, an event for each delta.
async function say(turn, stream, suspend) {
	const counts = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 };
	const message = {
		role: "assistant", content: [], api: "scripted", provider: "scripted", model: "scripted",
		usage: { ...counts, totalTokens: 0, cost: counts }, stopReason: turn.at(-1).id ? "toolUse" : "stop", timestamp: Date.now(),
	};
	stream.push({ type: "start", partial: message });
	for (const [contentIndex, block] of turn.entries()) {
		const kind = block.id ? "toolcall" : "text";
		const part = block.id ? { type: "toolCall", id: block.id, name: block.name, arguments: {} } : { type: "text", text: "" };
		message.content.push(part);
		stream.push({ type: `${kind}_start`, contentIndex, partial: message });
		let said = "";
		const type = `${kind}_delta`;
		for (const delta of block.pieces) {
			if (suspend) await yieldToScheduler();
			said += delta;
			if (!block.id) part.text = said;
			stream.push({ type, contentIndex, delta, partial: message });
		}
		if (block.id) part.arguments = JSON.parse(said);
		const end = block.id ? { toolCall: part } : { content: said };
		stream.push({ type: `${kind}_end`, contentIndex, ...end, partial: message });
	}
	stream.push({ type: "done", reason: message.stopReason, message });
}

function look(event, seen) {
	if (event.type === "message_update" && event.assistantMessageEvent.type === "text_delta")
		seen.characters += event.assistantMessageEvent.delta.length;
	else if (event.type === "tool_execution_end") seen.results++;
}

const perRun = (workload, size) => ({
	W1: [PIECE * size, 0], W2: [PIECE, CALLS * size], W3: [PIECE, 1], W4: [PIECE * DELTAS_IN_W4 * 2, CALLS],
})[workload];

function fail(text) {
	console.error(text);
	process.exit(1);
}

async function check(play, workload) {
	const size = CHECKED[workload];
	const seen = { characters: 0, results: 0 };
	done.calls = 0;
	for await (const event of play(turns(workload, size), workload === "W4")) look(event, seen);
	const [characters, count] = perRun(workload, size);
	if (seen.characters !== characters || seen.results !== count || done.calls !== count)
		fail(`${workload}: saw ${seen.characters} characters, ${seen.results} results of ${done.calls} calls`);
}

async function drained(events) {
	let count = 0;
	for await (const _ of events) count++;
	return count;
}

async function once(play, workload, size) {
	const many = workload === "W4";
	const scripts = many ? Array.from({ length: size }, (_, number) => turns("W4", number)) : [turns(workload, size)];
	done.calls = 0;
	globalThis.gc?.();
	const start = process.cpuUsage();
	const counts = await Promise.all(scripts.map(script => drained(play(script, many))));
	const used = process.cpuUsage(start);
	const events = counts.reduce((sum, count) => sum + count, 0);
	const least = workload === "W1" ? size : 1;
	if (events < least || done.calls !== perRun(workload, size)[1] * (many ? size : 1))
		fail(`${workload} ${size}: ${events} events, ${done.calls} calls`);
	return (used.user + used.system) / 1e6;
}

function peak() {
	const line = readFileSync("/proc/self/status", "utf8").split("\n").find(line => line.startsWith("VmHWM"));
	return Number(line.split(/\s+/)[1]) / 1_024;
}

const [name, folder, workload, sizeText] = process.argv.slice(2);
const size = Number(sizeText);
const driver = await import(`./${name}`);
const play = await driver.prepare(folder, tools, say);
await check(play, workload);
await once(play, workload, WARM_UP[workload]);
const linux = existsSync("/proc/self/clear_refs");
if (linux) writeFileSync("/proc/self/clear_refs", "5");
const rounds = [];
while (rounds.length < ROUNDS && rounds.reduce((sum, one) => sum + one, 0) < SECONDS_FOR_ROUNDS)
	rounds.push(await once(play, workload, size));
const least = Math.min(...rounds);
const version = packageName => JSON.parse(readFileSync(`${folder}/node_modules/${packageName}/package.json`, "utf8")).version;
console.log(JSON.stringify({
	us: (least / size) * 1e6, first_us: (rounds[0] / size) * 1e6, seconds: least, rounds: rounds.length, mib: linux ? peak() : null,
	runtime: process.versions.bun ? `bun ${process.versions.bun}` : `node ${process.versions.node}`,
	versions: Object.fromEntries(driver.packages.map(packageName => [packageName, version(packageName)])),
}));
process.exit(0);
