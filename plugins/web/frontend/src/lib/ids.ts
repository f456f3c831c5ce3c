/** Return a new id. `crypto.randomUUID` is there on HTTPS and on this machine only. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
