import { describe, expect, it } from 'vitest'
import { type Contract, headerFilter, verdicts } from './contract.ts'
import { type ContractChanges, defineContract } from './contract-check.ts'
import { ietf } from './contracts/ietf.ts'
import { stripe } from './contracts/stripe.ts'

const impossible: ReadonlyArray<readonly [changes: ContractChanges, text: RegExp]> = [
  [{ lease: { ms: 0 } }, /lease\.ms is 0, but must be a whole number of at least 100/],
  [{ lease: { ms: 30.5 } }, /lease\.ms is 30\.5/],
  [{ lease: { ms: Number.NaN } }, /lease\.ms is NaN/],
  [{ lease: { ms: 30_000, handlerMsMax: 10_000 } }, /lease\.handlerMsMax is 10000/],
  [{ ttl: { committedMs: -1 } }, /ttl\.committedMs is -1/],
  [{ ttl: { rejectedMs: 0 } }, /ttl\.rejectedMs is 0/],
  [{ ttl: { unknownMs: 0 } }, /ttl\.unknownMs is 0.*run twice in silence/],
  [{ ttl: { expiredMs: -5 } }, /ttl\.expiredMs is -5/],
  [{ inFlight: 'wait', waitMsMax: 30_001 }, /waitMsMax is 30001, longer than the lease \(lease\.ms = 30000\)/],
  [{ inFlight: 'wait', waitMsMax: 0 }, /waitMsMax is 0/],
  [{ methods: [] }, /methods is empty/],
  [{ methods: ['post'] }, /methods has "post"; write methods in capitals/],
  [{ key: { header: 'bad header' } }, /key\.header is "bad header", which is not a header name/],
  [{ key: { lengthMax: 0 } }, /key\.lengthMax is 0/],
  [{ headers: { keep: ['Set-Cookie'] } }, /headers\.keep has "Set-Cookie", which must never be replayed/],
  [{ answers: { keep: ['2xx'], release: [], unknown: ['3xx', '4xx'] } }, /answers says nothing about status 500/],
  [{ answers: { keep: ['2xx', 503] } }, /answers\.release has 503, which answers\.keep has too/],
  [{ answers: { keep: [99] } }, /answers\.keep has 99; write a status from 200 to 599/],
  [{ errors: { statuses: { 'key-conflict': 200 } } }, /errors\.statuses\.key-conflict is 200/],
  [{ errors: { docsUrl: 'javascript:alert(1)' } }, /errors\.docsUrl must be an http or https address/],
  [{ limits: { answerBytesMax: -1 } }, /limits\.answerBytesMax is -1/],
]

// What plain JavaScript or a file can get wrong, where the types do not help.
const malformed: ReadonlyArray<readonly [changes: unknown, text: RegExp]> = [
  [{ leaseMs: 5 }, /leaseMs is not a field of a contract; the fields here are name, methods/],
  [{ ttl: { committed: 5 } }, /ttl\.committed is not a field of a contract; the fields here are committedMs/],
  [{ ttl: 5 }, /ttl must be an object, but is 5/],
  [{ lease: { ms: '30s' } }, /lease\.ms must be a number, but is "30s"/],
  [{ crash: 'retry' }, /crash must be "refuse" or "rerun" or "reconcile", but is "retry"/],
  [{ scope: ['principal'] }, /scope must be a list of "method" and "route", but is \["principal"\]/],
  [{ methods: 'POST' }, /methods must be a list of strings, but is "POST"/],
  [{ headers: { echoKey: 1 } }, /headers\.echoKey must be true or false, but is 1/],
  [{ name: null }, /name must be a string, but is null/],
]

describe('contracts', () => {
  it.each([ietf, stripe])('$name can work', (contract) => {
    expect(defineContract(contract)).toEqual(contract)
  })

  it.each([...impossible, ...malformed])('%j is refused with a text that names the field', (changes, text) => {
    expect(() => defineContract(ietf, changes as ContractChanges)).toThrow(text)
  })

  it('a changed contract keeps everything else', () => {
    const short = defineContract(ietf, { name: 'short', ttl: { committedMs: 1_000 } })
    expect(short).toEqual({ ...ietf, name: 'short', ttl: { ...ietf.ttl, committedMs: 1_000 } })
  })

  it('is plain data: it survives JSON', () => {
    expect(defineContract(JSON.parse(JSON.stringify(ietf)) as Contract)).toEqual(ietf)
  })

  it('an exact status wins over its class', () => {
    const verdict = verdicts(ietf)
    expect([200, 303, 404, 408, 425, 429, 500, 502, 503, 504].map(verdict)).toEqual([
      'keep',
      'keep',
      'keep',
      'release',
      'release',
      'release',
      'keep',
      'unknown',
      'release',
      'unknown',
    ])
  })

  it('X4: the header allow-list takes names and prefixes, and never a cookie', () => {
    const keeps = headerFilter(defineContract(ietf, { headers: { keep: ['Content-Type', 'X-Order-*', 'set-*'] } }))
    expect(['content-type', 'x-order-id', 'x-other', 'set-cookie', 'date'].map(keeps)).toEqual([
      true,
      true,
      false,
      false,
      false,
    ])
  })
})
