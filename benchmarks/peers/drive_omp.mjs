// oh-my-pi's agentLoop on bun, with a stream function that plays the script.

export const packages = ["@oh-my-pi/pi-agent-core", "@oh-my-pi/pi-ai", "@oh-my-pi/pi-natives", "@oh-my-pi/pi-utils"];

export async function prepare(folder, tools, say) {
	const scope = `${folder}/node_modules/@oh-my-pi`;
	const { agentLoop } = await import(`${scope}/pi-agent-core/src/index.ts`);
	const { AssistantMessageEventStream } = await import(`${scope}/pi-ai/src/utils/event-stream.ts`);
	const model = { id: "scripted", api: "scripted", provider: "scripted" };
	return (turns, suspend) => {
		let number = 0;
		const streamFn = () => {
			const stream = new AssistantMessageEventStream();
			say(turns[number++], stream, suspend).catch(error => stream.fail(error));
			return stream;
		};
		const prompt = { role: "user", content: "go", timestamp: Date.now() };
		const context = { systemPrompt: [], messages: [], tools };
		return agentLoop([prompt], context, { model, convertToLlm: messages => messages }, undefined, streamFn);
	};
}
