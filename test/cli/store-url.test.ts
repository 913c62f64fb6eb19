import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { withoutPassword } from '../../src/cli/store-url.ts'

/** In every password here, and nowhere else in an address. */
const SECRET = 'x7Qz'

describe('an address as it may be shown', () => {
  it.each([
    ['redis://:p@ss@host', 'redis://:…@host'],
    ['redis://ann:secret@[::1]:6379/0', 'redis://ann:…@[::1]:6379/0'],
    ['postgres://u:pa/ss@host:5432/db', 'postgres://u:…@host:5432/db'],
    ['postgres://u:pa?ss#x@host/db', 'postgres://u:…@host/db'],
    ['nats://TOKEN@host:4222/bucket', 'nats://…@host:4222/bucket'],
    ['mongodb://u:p@h1:1,h2:2/db?authSource=admin', 'mongodb://u:…@h1:1,h2:2/db?authSource=admin'],
    [
      'postgres://host/db?user=u&password=secret&sslmode=require',
      'postgres://host/db?user=u&password=…&sslmode=require',
    ],
    ['postgres://host/db?password=a&b&sslmode=require', 'postgres://host/db?password=…&sslmode=require'],
    ['postgres://host/db?password=p@ss', 'postgres://…'],
    ['mongodb://h/db?authMechanismProperties=AWS_SESSION_TOKEN:abc', 'mongodb://h/db?authMechanismProperties=…'],
    ['redis:ann:secret@host', 'redis:ann:…@host'],
    ['secret@host', '…@host'],
    ['redis://localhost:6379', 'redis://localhost:6379'],
    ['redis://ann:@host', 'redis://ann:@host'],
    ['sqlite:/home/ann@work/keys.db', 'sqlite:/home/ann@work/keys.db'],
    ['memory:', 'memory:'],
  ])('%s is %s', (address, shown) => expect(withoutPassword(address)).toBe(shown))

  const pieces = [
    '@',
    '/',
    '//',
    '?',
    '#',
    ':',
    '&',
    '=',
    '%',
    '%40',
    ' ',
    '[',
    ']',
    ',',
    ';',
    '\n',
    '…',
    '?key=',
    '&a=',
  ]
  const passwordOf = (allowed: readonly string[]) =>
    fc
      .array(fc.constantFrom(SECRET, SECRET, ...allowed), { minLength: 1, maxLength: 8 })
      .map((parts) => parts.join('') || SECRET)
  const scheme = fc.constantFrom('redis', 'rediss', 'postgres', 'mysql', 'mongodb+srv', 'nats', 'tls', 'oracle')
  const after = fc.constantFrom('', ':6379', '/db', ':1,h2:2/db?a=b', '/db?application_name=us@them', '?')

  it('never holds anything of a password', () => {
    const user = fc.constantFrom('', 'ann', 'ann.b-c', 'a%40b', 'a/b')
    fc.assert(
      fc.property(scheme, user, passwordOf(pieces), after, (scheme, user, password, after) => {
        expect(withoutPassword(`${scheme}://${user}:${password}@host${after}`)).not.toContain(SECRET)
      }),
    )
  })

  it('never holds anything of a token', () => {
    // Before a colon it would be a name.
    const token = passwordOf(pieces.filter((piece) => !piece.includes(':')))
    fc.assert(
      fc.property(scheme, token, after, (scheme, token, after) => {
        expect(withoutPassword(`${scheme}://${token}@host${after}`)).not.toContain(SECRET)
      }),
    )
  })

  it('never holds anything of a parameter with a secret', () => {
    const name = fc.constantFrom('password', 'Passwd', 'sslpassword', 'auth_token', 'client-secret', 'apiKey')
    // After a bare & with = it would be another parameter.
    const plain = passwordOf(pieces.filter((piece) => !piece.includes('=')))
    const encoded = passwordOf(pieces).map(encodeURIComponent)
    fc.assert(
      fc.property(scheme, name, fc.oneof(plain, encoded), fc.boolean(), (scheme, name, value, isLast) => {
        const address = `${scheme}://ann@host/db?a=b&${name}=${value}${isLast ? '' : '&sslmode=require'}`
        expect(withoutPassword(address)).not.toContain(SECRET)
      }),
    )
  })
})
