import { createServer } from 'node:http'
import { describe, expect, it } from 'vitest'
import * as node from '../src/adapters/node.ts'
import { type CheckOptions, type CheckReport, checkApi, toJunit, toText } from '../src/check/index.ts'
import type { Contract } from '../src/contract.ts'
import { ietf } from '../src/contracts/ietf.ts'
import { payments } from '../src/contracts/payments.ts'
import { resources } from '../src/contracts/resources.ts'
import { stripe } from '../src/contracts/stripe.ts'
import { writes } from '../src/contracts/writes.ts'
import { memoryStore } from '../src/stores/memory.ts'
import type { FetchAdapterUnderTest } from '../src/testing/adapter-suite.ts'
import { type Bug, naiveSubject } from './adapters/naive.ts'
import { bridge, fetchSubject, honoPlainSubject, listening } from './adapters/subjects.ts'
import { careless, DEFECTS, type Defect } from './check/careless.ts'
import { baseOf, everything, orderService, type Service, VERY_SLOW_MS } from './check/service.ts'

/** All that did not pass, with its words, so that a failed test tells why. */
function notPassed({ cases }: CheckReport): string[] {
  return cases.filter(({ verdict }) => verdict !== 'pass').map(({ id, verdict, came }) => `${verdict} ${id}: ${came}`)
}

function failed({ cases }: CheckReport): string[] {
  return cases.filter(({ verdict }) => verdict === 'fail').map(({ id }) => id)
}

async function behindNode(contract: Contract, service: Service): Promise<CheckOptions> {
  const principal = (request: { headers: { authorization?: string | undefined } }) =>
    request.headers.authorization ?? 'nobody'
  const protect = node.idempotency({ store: memoryStore(), principal, contract })
  return everything(baseOf(await listening(createServer(protect(bridge(service.handle))))))
}

async function behind(subject: FetchAdapterUnderTest, { handle }: Service): Promise<CheckOptions> {
  // A Request, or what Hono wraps around it.
  const principal = (given: unknown): string => {
    const request = (given instanceof Request ? given : (given as { req: { raw: Request } }).req.raw) as Request
    return request.headers.get('authorization') ?? 'nobody'
  }
  const options = { store: memoryStore(), principal, contract: ietf }
  return everything(baseOf(await subject.serve({ options, handle, routes: ['/orders', '/count'] })))
}

describe('X9: oncekey check against our own adapters', () => {
  it.each([
    [ietf, []],
    [writes, []],
    [payments, []],
    // These let a request without a key run unprotected, which is theirs to say.
    [stripe, ['warn keys.missing', 'warn keys.empty']],
    [resources, ['warn keys.missing', 'warn keys.empty']],
  ])('contract $name: nothing fails', async (contract, expected) => {
    const report = await checkApi(await behindNode(contract, orderService()))
    expect(notPassed(report).map((line) => line.split(':', 1)[0])).toEqual(expected)
    expect(report.totals.pass).toBe(report.cases.length - expected.length)
    expect(report.probe).toEqual({ status: 201, keysAreQuoted: false, judgedBy: 'effects' })
  })

  it.each([fetchSubject, honoPlainSubject])('adapter $name: all pass', async (subject) => {
    expect(notPassed(await checkApi(await behind(subject, orderService())))).toEqual([])
  })

  it('without a count it judges by the answers, and says so', async () => {
    const { countUrl, countPath, ...options } = await behindNode(ietf, orderService())
    const report = await checkApi(options)
    expect(notPassed(report)).toEqual([])
    expect(report.probe.judgedBy).toBe('answers')
  })

  it('an outcome that stays unknown after a 502 is a warning', async () => {
    const service = orderService()
    const { handle } = service
    service.handle = async (request) => {
      const answer = await handle(request)
      return answer.status === 500 ? new Response('nobody behind', { status: 502 }) : answer
    }
    const report = await checkApi({ ...(await behindNode(ietf, service)), only: ['failures'] })
    expect(notPassed(report)).toEqual([expect.stringMatching(/^warn failures.retry: First 502 .* then 409/)])
  })
})

describe('X9: oncekey check names what is wrong', () => {
  it('and nothing is, in the careless service without a defect', async () => {
    const report = await checkApi({ ...everything(baseOf(await careless())), countPath: '' })
    expect(notPassed(report)).toEqual([])
  })

  describe.each(['effects', 'answers'])('judged by %s', (judged) => {
    it.each(Object.entries(DEFECTS) as Array<[Defect, string]>)('%s → %s', async (defect, id) => {
      const { countUrl, countPath, ...options } = everything(baseOf(await careless(defect)))
      const report = await checkApi({
        ...options,
        ...(judged === 'effects' && { countUrl: countUrl ?? '' }),
        only: [id],
      })
      expect(report.probe.judgedBy).toBe(judged)
      const [only] = report.cases
      expect(`${only?.verdict} ${only?.came}`).toMatch(/^fail/)
      expect(only).toMatchObject({ id, verdict: 'fail' })
      for (const text of [only?.sent, only?.came, only?.meaning, only?.next, only?.basis]) expect(text).not.toBe('')
    })
  })

  it.each([
    ['bodies go through .text()', 'headers.encoding', 'fail'],
    ['Set-Cookie is kept', 'headers.cookies', 'fail'],
    ['the principal is not in the scope', 'tenants.isolation', 'fail'],
    ['the claim is a read and then a write', 'in-flight.duplicate', 'fail'],
    ['a refusal is stored', 'conflict.body', 'fail'],
    ['the query is ignored', 'conflict.query', 'warn'],
    ['the body is compared as text', 'conflict.order', 'warn'],
    ['quotes are part of the key', 'keys.quoted', 'warn'],
  ] satisfies Array<[Bug, string, string]>)('as published libraries do it: %s → %s (%s)', async (bug, id, verdict) => {
    const service = id.startsWith('in-flight') ? orderService(undefined, VERY_SLOW_MS) : orderService()
    const report = await checkApi({ ...(await behind(naiveSubject(bug), service)), only: [id] })
    expect(report.cases).toMatchObject([{ id, verdict }])
  })

  it('and nothing is, in the same small adapter without a bug', async () => {
    expect(notPassed(await checkApi(await behind(naiveSubject(), orderService())))).toEqual([])
  })

  it.each(['no idempotency at all', 'the key stays locked'] as const)(
    'the whole run comes to its end within its bound: %s',
    async (defect) => {
      const report = await checkApi({ ...everything(baseOf(await careless(defect))), countPath: '' })
      expect(failed(report)).toContain('replay.success')
      expect(failed(report)).toContain('race.same-key')
    },
  )

  it.each([
    ['an empty body counts as no answer', () => new Response(null, { status: 201 })],
    ['a redirect counts as a failure', () => new Response(null, { status: 303, headers: { Location: '/orders' } })],
  ] satisfies Array<[Bug, () => Response]>)(
    'answers that all look the same are told apart by their effects: %s',
    async (bug, answer) => {
      const good = await checkApi(await behind(naiveSubject(), orderService(answer)))
      expect(failed(good)).toEqual([])
      const options = await behind(naiveSubject(bug), orderService(answer))
      expect(failed(await checkApi({ ...options, only: ['replay'] }))).toEqual(['replay.success'])
    },
  )

  it('answers that all look the same, without a count or a mark: it says that it cannot tell', async () => {
    const { handle } = orderService(() => new Response('done'))
    const base = baseOf(await listening(createServer(bridge(handle))))
    const report = await checkApi({ url: `${base}/orders`, body: '{"n":1}', only: ['replay.success', 'race'] })
    expect(report.probe.judgedBy).toBe('nothing')
    expect(notPassed(report)).toEqual([
      expect.stringMatching(/^warn replay.success/),
      expect.stringMatching(/^warn race.same-key/),
    ])
    expect(toText(report)).toContain('Give --count-url')
  })

  it('a service that dies of a key is a finding, and the check ends', async () => {
    const { handle } = orderService()
    const server = createServer((request, response) => {
      if (!request.headers['idempotency-key']?.includes('\t')) return bridge(handle)(request, response)
      server.close()
      server.closeAllConnections()
    })
    const { server: listened } = await listening(server)
    const { port } = listened.address() as { port: number }
    const url = `http://127.0.0.1:${port}/orders`
    const report = await checkApi({ url, body: '{"n":1}', only: ['keys.control', 'keys.twice'] })
    expect(failed(report)).toEqual(['keys.control', 'keys.twice'])
    expect(report.cases[0]?.meaning).toContain('take it down')
  })

  it('a service that wants quoted keys is asked with quoted keys', async () => {
    const { handle } = orderService()
    const strict = node.idempotency({ store: memoryStore(), principal: 'public' })(bridge(handle))
    const server = createServer((request, response) => {
      const key = request.headers['idempotency-key']
      if (request.method !== 'POST' || key === undefined || key.toString().startsWith('"'))
        return strict(request, response)
      response.writeHead(400).end('The key is not a string of RFC 8941.')
    })
    const { secondPrincipal, ...options } = everything(baseOf(await listening(server)))
    const report = await checkApi(options)
    expect(report.probe.keysAreQuoted).toBe(true)
    expect(notPassed(report)).toEqual([expect.stringMatching(/^skip tenants/)])
  })
})

describe('X9: a run of oncekey check', () => {
  it('sends no more than it has announced, and as much as it says', async () => {
    let received = 0
    const { handle } = orderService()
    const listener = node.idempotency({ store: memoryStore(), principal: 'public' })(bridge(handle))
    const server = createServer((request, response) => {
      received++
      listener(request, response)
    })
    const plans: number[] = []
    const report = await checkApi({
      ...everything(baseOf(await listening(server))),
      onStart: ({ requestsMax }) => plans.push(requestsMax),
    })
    expect(report.requests).toBe(received)
    expect(plans).toEqual([expect.toSatisfy((announced: number) => announced >= received && announced < 250)])
  })

  it('with nothing but a URL, skips say what is needed', async () => {
    const { handle } = orderService()
    const base = baseOf(await listening(createServer(bridge(handle))))
    const report = await checkApi({ url: `${base}/orders`, headers: [['X', 'y']], body: '[]' })
    const skipped = report.cases.filter(({ verdict }) => verdict === 'skip')
    expect(skipped.map(({ id, next }) => `${id}: ${next}`)).toEqual([
      'conflict.body: Give --other-body.',
      'conflict.order: ',
      'in-flight.duplicate: Give --slow-body.',
      'failures.retry: Give --fail-body.',
      'tenants.isolation: Give --second-principal.',
    ])
  })

  it.each([
    [{ url: 'ftp://x' }, /The URL is "ftp:\/\/x"/],
    [{ url: 'http://127.0.0.1:1/' }, /gave no answer: ECONNREFUSED/],
    [{ only: ['dance'] }, /no case "dance" for --only; the chapters are replay, conflict/],
    [{ method: 'GET' }, /--method is GET, which writes nothing/],
    [{ headers: [['A b', 'c']] }, /The header "A b" cannot be sent/],
    [{ headers: [['A', 'secret\r\nB: c']] }, /^(?!.*secret).*The header "A" cannot be sent/],
    [{ keyHeader: 'K:' }, /--key-header is "K:"/],
    [{ timeoutMs: 0 }, /--timeout is 0 ms/],
    [{ countPath: 'a' }, /--count-path needs --count-url/],
    [{ body: 'no json' }, /answered with 400 .* although its key was new/],
    [{ method: 'PUT' }, /answered with 405 .* Give the --method/],
  ] satisfies Array<[Partial<CheckOptions>, RegExp]>)('%j is refused in words', async (wrong, text) => {
    const { handle } = orderService()
    const base = baseOf(await listening(createServer(bridge(handle))))
    await expect(checkApi({ url: `${base}/orders`, body: '{}', ...wrong })).rejects.toThrow(text)
  })

  it('a count that counts something else is refused in words', async () => {
    const { handle } = orderService()
    const base = baseOf(await listening(createServer(bridge(handle))))
    const options = { url: `${base}/orders`, body: '{}', countUrl: `${base}/count` }
    await expect(checkApi({ ...options, countPath: 'orders.lost' })).rejects.toThrow(
      /no number or array at "orders.lost"/,
    )
    const fixed = baseOf(await listening(createServer((_request, response) => response.end('[1,2]'))))
    await expect(checkApi({ ...options, countUrl: fixed })).rejects.toThrow(/was 2 before .* and 2 after/)
  })
})

describe('X9: the reports of oncekey check', () => {
  const HOSTILE = '\u001b[31m<b>"it\'s" & ]]>\u0000</b>'

  async function hostile(): Promise<CheckReport> {
    const { handle } = orderService((id) => new Response(`${HOSTILE}${id}`))
    const base = baseOf(await listening(createServer(bridge(handle))))
    return checkApi({
      url: `${base.replace('//', '//me:pass@')}/orders?token=t`,
      body: '{"n":{{n}}}',
      only: ['replay'],
    })
  }

  it('keep the service’s control characters and the user’s secrets to themselves', async () => {
    const report = await hostile()
    const text = toText(report)
    expect(text).toContain('\\u001b[31m<b>')
    for (const shown of [text, toJunit(report)]) {
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      expect(shown).not.toMatch(/[\u0000-\u0008\u000b-\u001f]/)
    }
    for (const shown of [text, toJunit(report), JSON.stringify(report)]) expect(shown).not.toMatch(/pass@|token=/)
    expect(toText(report, { isColored: true })).toContain('\u001b[31mfail\u001b[0m')
  })

  it('JUnit has what a build server counts, escaped', async () => {
    const xml = toJunit(await hostile())
    expect(xml).toMatch(
      /^<\?xml version="1.0" encoding="UTF-8"\?>\n<testsuites name="oncekey check" tests="2" failures="1"/,
    )
    expect(xml).toContain('&lt;b&gt;&quot;it&apos;s&quot; &amp; ]]&gt;')
    // Without its tags, attributes and entities nothing is left that an XML parser would stumble over.
    expect(xml.replaceAll(/<\/?[\w?][^<>]*>/g, '').replaceAll(/&(?:lt|gt|amp|quot|apos|#\d+);/g, '')).not.toMatch(
      /[<>&]/,
    )
    expect(xml.match(/<failure /g)).toHaveLength(1)
  })
})
