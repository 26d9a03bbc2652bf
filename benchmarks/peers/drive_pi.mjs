// pi's agentLoop on node, with a stream function that plays the script.

export const packages = ["@earendil-works/pi-agent-core", "@earendil-works/pi-ai"];

export async function prepare(folder, tools, say) {
	const scope = `${folder}/node_modules/@earendil-works`;
	const { agentLoop } = await import(`${scope}/pi-agent-core/dist/index.js`);
	const { createAssistantMessageEventStream } = await import(`${scope}/pi-ai/dist/index.js`);
	const model = { id: "scripted", api: "scripted", provider: "scripted" };
	return (turns, suspend) => {
		let number = 0;
		const streamFn = () => {
			const stream = createAssistantMessageEventStream();
			void say(turns[number++], stream, suspend);
			return stream;
		};
		const prompt = { role: "user", content: "go", timestamp: Date.now() };
		return agentLoop([prompt], { messages: [], tools }, { model, convertToLlm: messages => messages }, undefined, streamFn);
	};
}
