import fc from 'fast-check'

/** Any UTF-16 code unit, lone surrogates and control characters too; Latin-1 and surrogates come more often. */
export const anyUnit: fc.Arbitrary<string> = fc
  .oneof(
    fc.integer({ min: 0, max: 0xff }),
    fc.integer({ min: 0, max: 0xffff }),
    fc.integer({ min: 0xd800, max: 0xdfff }),
  )
  .map((code) => String.fromCharCode(code))

/** RFC 8785 as one would say it: recursive, slow and short. The real one is measured against it. */
export function reference(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(reference).join(',')}]`
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  const members = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${reference(member)}`).join(',')}}`
}

/** One of the many JSON texts for a value: members shuffled, white space, escapes and numbers as the seed has it. */
export function spell(value: unknown, seed: number): string {
  const random = randomFrom(seed)
  const space = (): string => [' ', '\n', '\t\r', '', '', '', ''][Math.floor(random() * 7)] as string
  const string = (text: string): string => {
    const spelled = text.split('').map((unit) => {
      const style = random()
      const hex = unit.charCodeAt(0).toString(16).padStart(4, '0')
      if (style < 0.1) return `\\u${hex}`
      if (style < 0.2) return `\\u${hex.toUpperCase()}`
      if (unit === '/' && style < 0.6) return '\\/'
      return JSON.stringify(unit).slice(1, -1)
    })
    // A pair of surrogates is spelled unit by unit above; an unescaped one must stand next to its other half.
    return `"${spelled.join('').replace(/\\u(d[89ab]..)\\u(d[c-f]..)/gi, (pair) => (random() < 0.5 ? pair : JSON.parse(`"${pair}"`)))}"`
  }
  const number = (n: number): string => {
    const text = String(n)
    if (!Number.isInteger(n) || text.includes('e')) return random() < 0.5 ? text : text.replace('e', 'E')
    return [text, `${text}.0`, `${text}e0`, n === 0 ? '0E-1' : `${text}0E-1`][Math.floor(random() * 4)] as string
  }
  const write = (part: unknown): string => {
    const [before, after] = [space(), space()]
    return before + body(part) + after
  }
  const body = (part: unknown): string => {
    if (typeof part === 'string') return string(part)
    if (typeof part === 'number') return number(part)
    if (Array.isArray(part)) return `[${part.length === 0 ? space() : part.map(write).join(',')}]`
    if (part === null || typeof part !== 'object') return String(part)
    const members = Object.entries(part).map(([name, member]) => ({ order: random(), name, member }))
    members.sort((a, b) => a.order - b.order)
    return `{${space()}${members.map(({ name, member }) => `${space()}${string(name)}${space()}:${write(member)}`).join(',')}}`
  }
  return write(value)
}

/** A small seeded generator (xorshift), so that a failing seed fails again. */
function randomFrom(seed: number): () => number {
  let state = seed | 1
  return () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) / 2 ** 32
  }
}
