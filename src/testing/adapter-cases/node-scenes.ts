import type { IncomingMessage, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

/** Notes what a handler can see of its response. */
type Note = (text: string) => void
export type Scene = (response: ServerResponse, note: Note, request: IncomingMessage) => void | Promise<void>

/**
 * What a handler does with its response, and what it sees of it, must be the same as without the adapter. Each scene is
 * played on bare node:http and behind the adapter; the notes and the answers must agree, and the retry must be a replay.
 */
export const SCENES: Readonly<Record<string, Scene>> = {
  'writeHead with a flat list of names and values': (response) => {
    response.writeHead(201, ['Content-Type', 'text/plain', 'Link', '</a>', 'Link', '</b>'])
    response.end('listed')
  },
  'writeHead with a status text and an object': (response) => {
    response.writeHead(202, 'Taken', { 'Content-Type': 'text/plain', Vary: ['A', 'B'] })
    response.end('named')
  },
  'writeHead over headers that were set before': (response, note) => {
    response.setHeader('Content-Type', 'text/html')
    response.setHeader('ETag', '"1"')
    response.writeHead(200, { 'content-type': 'text/plain', 'X-Request-Id': 7 })
    note(`sent ${response.headersSent}`)
    response.end('merged')
  },
  'writeHead with a list over headers that were set before': (response) => {
    response.setHeader('Link', '</old>')
    response.setHeader('ETag', '"1"')
    response.writeHead(200, ['Link', '</a>', 'link', '</b>'])
    response.end('merged')
  },
  'writeHead whose result is used': (response) => {
    response.writeHead(201, { Location: '/1' }).end('chained')
  },
  'setHeaders and appendHeader': (response) => {
    response.setHeaders(new Map([['Content-Type', 'text/plain']]))
    response.appendHeader('Vary', 'A')
    response.appendHeader('Vary', ['B', 'C'])
    response.end('x')
  },
  'an end without a body': (response, note) => {
    response.statusCode = 201
    note(`before: sent ${response.headersSent}, ended ${response.writableEnded}, finished ${response.finished}`)
    note(`returns itself: ${response.end() === response}`)
    // Not `finished`, which is deprecated: by it `server.close()` knows which connections still owe an answer.
    note(`after: sent ${response.headersSent}, ended ${response.writableEnded}`)
  },
  'an end with a body and a callback': (response, note) => {
    response.end('body', () => note('end called back'))
    note(`after: sent ${response.headersSent}, ended ${response.writableEnded}`)
  },
  'an end with only a callback': (response, note) => {
    response.write('body')
    response.end(() => note('end called back'))
  },
  'an end with an encoding': (response) => {
    response.write('aGVsbG8g', 'base64')
    response.end('\u00e4\u00f6', 'latin1')
  },
  'write callbacks': (response, note) => {
    response.write('a', () => note('first called back'))
    response.write(Buffer.from('b'), () => note('second called back'))
    response.end(new Uint8Array([99]), () => note('end called back'))
  },
  'an empty write': (response) => {
    response.write('')
    response.write('a')
    response.end('')
  },
  'headers flushed before the body': (response, note) => {
    response.setHeader('Content-Type', 'text/plain')
    response.flushHeaders()
    note(`flushed: sent ${response.headersSent}`)
    response.end('later')
  },
  'cork and uncork': (response) => {
    response.cork()
    response.write('a')
    response.write('b')
    response.uncork()
    response.end('c')
  },
  'a buffer that is used again after its callback': async (response) => {
    const buffer = Buffer.from('first ')
    await new Promise((resolve) => response.write(buffer, resolve))
    buffer.fill('second')
    await new Promise((resolve) => response.write(buffer, resolve))
    buffer.fill('x')
    response.end()
  },
  'a pipeline': async (response, note) => {
    await pipeline(Readable.from([Buffer.from('a'), Buffer.from('b')]), response)
    note('the pipeline has ended')
  },
  'a Content-Length of its own': (response) => {
    response.setHeader('Content-Length', 6)
    response.write('abc')
    response.end('def')
  },
  'a header after the end': (response, note) => {
    response.end('x')
    note(codeOf(() => response.setHeader('X-Late', '1')))
    note(codeOf(() => response.writeHead(500)))
    note(codeOf(() => response.removeHeader('X-Late')))
    note(codeOf(() => response.appendHeader('X-Late', '1')))
    note(codeOf(() => response.flushHeaders()))
  },
  'a status after the end': (response, note) => {
    response.statusCode = 201
    response.end('x')
    response.statusCode = 500
    response.statusMessage = 'Late'
    note(`status ${response.statusCode}`)
  },
  'a header after the head': (response, note) => {
    response.writeHead(201, { 'Content-Type': 'text/plain' })
    note(codeOf(() => response.setHeader('X-Late', '1')))
    note(codeOf(() => response.writeHead(500)))
    note(`status ${response.statusCode}`)
    response.end('x')
  },
  'a status that is none': (response, note) => {
    response.statusCode = 1_000
    note(codeOf(() => response.end('x')))
    note(codeOf(() => response.writeHead(99)))
    response.statusCode = 400
    response.end('y')
  },
  'a header value that is none': (response, note) => {
    note(codeOf(() => response.setHeader('X', 'a\nb')))
    note(codeOf(() => response.writeHead(200, { 'X-Bad': 'a\r\nb' })))
    note(`sent ${response.headersSent}`)
    response.statusCode = 500
    response.statusMessage = 'Recovered'
    response.end('recovered')
  },
  'a chunk that is none': (response, note) => {
    note(codeOf(() => response.write(null)))
    note(codeOf(() => response.write(7)))
    note(codeOf(() => response.end(7)))
    response.end('recovered')
  },
  'a write after the end': (response, note) => {
    response.on('error', (error: NodeJS.ErrnoException) => note(`error ${error.code}`))
    response.end('whole')
    response.write('late', (error) => note(`late write ${(error as NodeJS.ErrnoException | null)?.code}`))
  },
  'a second end': (response, note) => {
    response.on('error', (error: NodeJS.ErrnoException) => note(`error ${error.code}`))
    response.end('whole')
    response.end()
    note('nothing thrown')
  },
  'a 204 with a body that must not be sent': (response) => {
    response.statusCode = 204
    response.end('dropped')
  },
  'a 304 with validators': (response) => {
    response.writeHead(304, { ETag: '"v1"' })
    response.end()
  },
  'early hints before the answer': (response) => {
    response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' })
    response.end('hinted')
  },
  'the HTTP keep-alive of the response': (response, note) => {
    note(`keep-alive ${response.shouldKeepAlive}`)
    response.setHeader('Connection', 'close')
    response.end('last')
  },
}

/** The same for the request, whose body the adapter has read before the handler does. */
export const REQUEST_SCENES: Readonly<Record<string, Scene>> = {
  'by events': (response, note, request) => {
    request.on('data', (chunk: Buffer) => note(`data ${chunk.toString('latin1')}`))
    request.on('end', () => {
      note(`end, complete ${request.complete}, ended ${request.readableEnded}`)
      response.end('read')
    })
  },
  'later than at once': async (response, note, request) => {
    await new Promise((resolve) => setImmediate(resolve))
    for await (const chunk of request) note(`data ${chunk}`)
    note(`ended ${request.readableEnded}, aborted ${request.aborted}`)
    response.end('read')
  },
  'with an encoding': (response, note, request) => {
    request.setEncoding('utf8')
    let text = ''
    request.on('data', (chunk: string) => {
      text += chunk
    })
    request.on('end', () => {
      note(`${typeof text} ${text}`)
      response.end('read')
    })
  },
  'by readable and read()': (response, note, request) => {
    request.on('readable', () => {
      for (let chunk = request.read(); chunk !== null; chunk = request.read()) note(`read ${chunk}`)
    })
    request.on('end', () => response.end('read'))
  },
  'through a pipe back to the client': (response, _note, request) => {
    request.pipe(response)
  },
  'not at all, and it closes': (response, note, request) => {
    request.on('close', () => note('request closed'))
    request.resume()
    request.on('end', () => response.end('resumed'))
  },
}

function codeOf(call: () => unknown): string {
  try {
    call()
    return 'nothing thrown'
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error)
  }
}
