// A TCP relay between an eve client and its server that breaks event streams on purpose.
//
// It forwards bytes unchanged. Each connection that carries a request for an event stream takes the
// next cut of the plan: after `lines` events and `bytes` more bytes the client sees its connection
// close. When the plan is used up, streams are left alone. `streams` lists the requested paths in
// order, so a scenario can see how often a client connected and from which cursor.
import net from "node:net";

const STREAM_REQUEST = /^GET (\S*\/stream\S*) HTTP\/1\.1\r\n/;
const NEWLINE = 0x0a;
const CLOSING_BRACE = 0x7d;

/** Index just behind the `lines`-th event of `data`, or -1 while it is not there yet. */
function endOfEvents(data, lines) {
  let seen = 0;
  if (lines === 0) return 0;
  for (let at = 1; at < data.length; at += 1) {
    if (data[at] === NEWLINE && data[at - 1] === CLOSING_BRACE && ++seen === lines) return at + 1;
  }
  return -1;
}

/**
 * Starts a relay in front of `target` (an address such as http://127.0.0.1:8787/as/eve/to/engine).
 * Gives `host`, the same address through the relay.
 */
export async function startCuttingProxy(target, plan = []) {
  const upstreamUrl = new URL(target);
  const cuts = [...plan];
  const streams = [];
  const open = new Set();

  const server = net.createServer((client) => {
    const upstream = net.connect(Number(upstreamUrl.port || 80), upstreamUrl.hostname);
    let cut;
    let received = Buffer.alloc(0);
    let done = false;
    for (const socket of [client, upstream]) {
      open.add(socket);
      socket.setNoDelay(true);
      socket.on("error", () => {});
      socket.on("close", () => {
        open.delete(socket);
        client.destroySoon();
        upstream.destroySoon();
      });
    }
    client.on("data", (data) => {
      const request = STREAM_REQUEST.exec(data.toString("latin1"));
      if (request) {
        streams.push(request[1]);
        cut = cuts.shift();
        received = Buffer.alloc(0);
      }
      upstream.write(data);
    });
    upstream.on("data", (data) => {
      if (done) return;
      if (cut === undefined) {
        client.write(data);
        return;
      }
      const before = received.length;
      received = Buffer.concat([received, data]);
      const end = endOfEvents(received, cut.lines);
      if (end < 0 || received.length < end + cut.bytes) {
        client.write(data);
        return;
      }
      done = true;
      client.end(data.subarray(0, Math.max(0, end + cut.bytes - before)));
      upstream.destroy();
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

  const host = new URL(target);
  host.hostname = "127.0.0.1";
  host.port = String(server.address().port);
  return {
    host: host.href.replace(/\/$/, ""),
    streams,
    cutsLeft: () => cuts.length,
    close() {
      server.close();
      for (const socket of open) socket.destroy();
    },
  };
}
