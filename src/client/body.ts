/** A request's body, ready to be sent: more than once, or exactly once. */
export interface Outgoing {
  readonly body: RequestInit['body']
  /** The type that belongs to these bytes, where the caller has not set one. */
  readonly contentType: string | undefined
  /** Why it can be sent only once. */
  readonly onceBecause: string | undefined
}

/**
 * Freezes what the caller gave, so that every attempt sends the same bytes: also a form, whose boundary would change, and
 * a buffer that its owner writes to again. A stream is never read ahead: it is sent once.
 */
export async function freezeBody(body: RequestInit['body'], bytesMax: number): Promise<Outgoing> {
  if (body === undefined || body === null || typeof body === 'string' || body instanceof Blob) return repeatable(body)
  if (!isPlain(body)) return once(body, 'its body is a stream')
  if (body instanceof FormData && filesBytes(body) > bytesMax) {
    return once(body, `the files of its form are larger than bodyBytesMax (${bytesMax})`)
  }
  const made = new Response(body)
  return repeatable(await made.arrayBuffer(), made.headers.get('content-type') ?? undefined)
}

/** The body of a `Request` is always a stream, whatever it was made of: it is read up to the bound. */
export async function freezeRequest(request: Request, bytesMax: number): Promise<Outgoing> {
  // One browser has no Request.body at all; null is a request that has nothing in it.
  if (request.body === undefined) return repeatable(await request.arrayBuffer())
  if (request.body === null) return repeatable(undefined)
  const reader = request.body.getReader()
  const chunks: Uint8Array[] = []
  for (let size = 0; ; ) {
    const { done, value } = await reader.read()
    if (done) return repeatable(joined(chunks, size))
    chunks.push(value)
    size += value.length
    if (size > bytesMax) return once(resumed(chunks, reader), `its body is larger than bodyBytesMax (${bytesMax})`)
  }
}

function isPlain(body: unknown): body is FormData | URLSearchParams | ArrayBuffer | ArrayBufferView<ArrayBuffer> {
  return (
    body instanceof FormData ||
    body instanceof URLSearchParams ||
    body instanceof ArrayBuffer ||
    ArrayBuffer.isView(body)
  )
}

function filesBytes(form: FormData): number {
  let bytes = 0
  for (const [, value] of form) if (typeof value !== 'string') bytes += value.size
  return bytes
}

function repeatable(body: RequestInit['body'], contentType?: string): Outgoing {
  return { body, contentType, onceBecause: undefined }
}

function once(body: RequestInit['body'], onceBecause: string): Outgoing {
  return { body, contentType: undefined, onceBecause }
}

function joined(chunks: readonly Uint8Array[], size: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(size)
  let at = 0
  for (const chunk of chunks) {
    bytes.set(chunk, at)
    at += chunk.length
  }
  return bytes
}

/** What was read already, and then the rest as it comes. */
function resumed(
  chunks: readonly Uint8Array[],
  reader: ReadableStreamDefaultReader<Uint8Array>,
): ReadableStream<Uint8Array> {
  const read = [...chunks]
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const chunk = read.shift() ?? (await reader.read()).value
      if (chunk === undefined) controller.close()
      else controller.enqueue(chunk)
    },
    cancel: (reason) => reader.cancel(reason),
  })
}
