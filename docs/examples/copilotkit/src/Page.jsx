import {
  CopilotChat,
  CopilotKitProvider,
  useDefaultRenderTool,
  useInterrupt,
  useRenderTool,
} from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";
import { z } from "zod";

export function Page() {
  return (
    <CopilotKitProvider runtimeUrl="/api/copilotkit">
      <Chat />
    </CopilotKitProvider>
  );
}

function Chat() {
  // Without this the page stops at the first approval.
  useInterrupt({ render: (asked) => <Asked {...asked} /> });
  // Without this no call of a tool is seen; `dragoman_ask` is what `Asked` shows already.
  useDefaultRenderTool();
  useRenderTool({ name: "dragoman_ask", parameters: z.any(), render: () => null });
  return <CopilotChat />;
}

function Asked({ interrupt, resolve, cancel }) {
  const { reason, message, responseSchema } = interrupt;
  const options = responseSchema?.enum ?? responseSchema?.examples ?? [];
  if (reason === "tool-approval" || reason === "confirmation") {
    return (
      <p className="asked">
        {message}
        <button onClick={() => resolve({ approved: true })}>Approve</button>
        <button onClick={() => resolve({ approved: false })}>Deny</button>
      </p>
    );
  }
  return (
    <form className="asked" action={(form) => resolve(form.get("words"))}>
      {message}
      {options.map((option) => (
        <button key={option} type="button" onClick={() => resolve(option)}>{option}</button>
      ))}
      <input name="words" aria-label="Answer" />
      <button type="button" onClick={() => cancel()}>Decline</button>
    </form>
  );
}
