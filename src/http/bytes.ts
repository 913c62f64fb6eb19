/** Statuses whose message ends with its headers. */
export function hasNoBody(status: number): boolean {
  return status === 204 || status === 205 || status === 304
}

export function concat(chunks: readonly Uint8Array[], bytes: number): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(bytes)
  let at = 0
  for (const chunk of chunks) {
    whole.set(chunk, at)
    at += chunk.byteLength
  }
  return whole
}
