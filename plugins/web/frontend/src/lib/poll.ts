// Looks at what the server does not tell by itself.

/** Call `look` now, and then every so many seconds while the page is seen. Returns what ends that. */
export function poll(look: () => Promise<void>, everyS: number): () => void {
  void look();
  const timer = setInterval(() => document.hidden || void look(), everyS * 1000);
  return () => clearInterval(timer);
}
