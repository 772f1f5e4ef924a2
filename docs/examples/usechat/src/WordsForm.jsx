/** One line to type words into; `onWords` gets them, if there are any. */
export function WordsForm({ label, action, onWords, children }) {
  const send = (form) => {
    const words = form.get("words").trim();
    if (words !== "") onWords(words);
  };
  return (
    <form action={send}>
      <input name="words" aria-label={label} placeholder={label} autoComplete="off" />
      <button>{action}</button>
      {children}
    </form>
  );
}
