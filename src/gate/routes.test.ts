import { describe, expect, it } from 'vitest'
import { scene } from '../../test/gate/scene.ts'
import { ietf } from '../contracts/ietf.ts'
import { stripe } from '../contracts/stripe.ts'
import { parseRoutes, Routes } from './routes.ts'

const contracts = { ietf, stripe }

describe('routes', () => {
  const routes = new Routes(
    [
      { template: '/orders', methods: ['POST'] },
      { template: '/orders/:id/items' },
      { template: '/orders/:id' },
      { template: '/files/*' },
      { template: '/' },
    ],
    ({ template }) => template,
  )

  it.each([
    ['POST', '/orders', '/orders'],
    ['GET', '/orders', undefined],
    ['GET', '/orders/7', '/orders/:id'],
    ['GET', '/orders/', undefined],
    ['GET', '/orders/7/items', '/orders/:id/items'],
    ['GET', '/orders/7/items/8', undefined],
    ['GET', '/files', undefined],
    ['GET', '/files/a/b', '/files/*'],
    ['GET', '/', '/'],
    ['POST', '/%6frders', '/orders'],
    ['GET', '/orders/a%2Fb', '/orders/:id'],
    ['GET', '/orders/%zz', '/orders/:id'],
  ])('%s %s is %s', (method, path, template) => {
    expect(routes.find(method, path)).toBe(template)
  })

  it('R2: the template, not the address, tells operations apart', async () => {
    const { open, upstream, store } = await scene({ routes: [{ template: '/orders/:id', contract: stripe }] })
    await open().post('k', '{}', [], '/orders/7').message()
    expect((await open().post('k', '{}', [], '/orders/8').message()).status).toBe(
      stripe.errors.statuses['key-conflict'],
    )
    expect(upstream.seen).toHaveLength(1)
    expect((await store.list())[0]?.labels.route).toBe('/orders/:id')
  })

  it('reads rules from plain data, with contracts by name and changes to them', () => {
    const rules = parseRoutes(
      {
        routes: [
          { template: '/a', contract: 'stripe', changes: { name: 'mine' }, limits: { requestBytesMax: 10 } },
          { template: '/b', enabled: false },
        ],
      },
      contracts,
      ietf,
    )
    expect(rules[0]?.contract?.name).toBe('mine')
    expect(rules[1]).toEqual({ template: '/b', enabled: false })
  })

  it.each([
    ['routes must be a list', {}],
    ['routes[0] must be an object', ['/a']],
    ['routes[0].template is "orders"', [{ template: 'orders' }]],
    ['routes[0].template is undefined', [{}]],
    ['routes[0].template is "/a?b=1"', [{ template: '/a?b=1' }]],
    ['routes[0].template is "/a/*/b"', [{ template: '/a/*/b' }]],
    ['routes[0].template has ":a-b"', [{ template: '/:a-b' }]],
    ['routes[0].template has ":id" twice', [{ template: '/:id/:id' }]],
    ['routes[1].methods must be', [{ template: '/a' }, { template: '/b', methods: ['post'] }]],
    ['routes[0].contract is "nope"', [{ template: '/a', contract: 'nope' }]],
    ['routes[0].contract is "toString"', [{ template: '/a', contract: 'toString' }]],
    ['routes[0].changes: contract "ietf": lease.ms', [{ template: '/a', changes: { lease: { ms: 1 } } }]],
    ['routes[0].enabled must be', [{ template: '/a', enabled: 'no' }]],
    ['routes[0].limits.upstreamMsMax is 0', [{ template: '/a', limits: { upstreamMsMax: 0 } }]],
    ['routes[0].limits.bodyMax is not a field', [{ template: '/a', limits: { bodyMax: 1 } }]],
    ['routes[0].tempalte is not a field', [{ tempalte: '/a' }]],
    ['routes[1] (/a/b) can never be reached', [{ template: '/a/*' }, { template: '/a/b' }]],
    ['routes[1] (/a/:x) can never be reached', [{ template: '/a/:y' }, { template: '/a/:x', methods: ['POST'] }]],
    [
      'routes[1] (/a) can never be reached',
      [
        { template: '/a', methods: ['POST', 'PUT'] },
        { template: '/a', methods: ['PUT'] },
      ],
    ],
  ])('%s', (message, data) => {
    expect(() => parseRoutes(data, contracts, ietf)).toThrow(message)
  })

  it('rules that only seem to hide each other are allowed', () => {
    const rules = [
      { template: '/a/:id', methods: ['POST'] },
      { template: '/a/:id' },
      { template: '/b/c' },
      { template: '/b/*' },
      { template: '/b/:x/y/*' },
    ]
    expect(() => parseRoutes(rules.slice(0, 4), contracts, ietf)).not.toThrow()
    expect(() => parseRoutes(rules, contracts, ietf)).toThrow('routes[4]')
  })
})
