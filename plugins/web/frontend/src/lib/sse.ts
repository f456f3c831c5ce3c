// Reads server-sent events; see https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream.

/** Seconds without a byte after which a connection counts as lost: the server sends a comment every 15 seconds. */
const SILENCE_S = 40;

export interface ServerEvent {
  name: string;
  data: string;
}

/** Read what comes next. After sleep, or on another network, a connection may be lost without an end. */
async function readSoon(reader: ReadableStreamDefaultReader<Uint8Array>) {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("nothing has come for too long")), SILENCE_S * 1000);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearTimeout(timer);
  }
}

/** Yield the events of a body. Comments and fields that are not needed here are left out. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let text = "";
  let name = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await readSoon(reader);
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const lines = text.split(/\r\n|\n|\r(?!$)/);
      text = lines.pop()!;
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { name: name || "message", data: data.join("\n") };
          name = "";
          data = [];
        } else if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  } finally {
    void reader.cancel().catch(() => {});
  }
}
