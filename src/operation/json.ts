/** Containers within containers that are read; a deeper document is a trap. */
export const DEPTH_MAX = 512

/** No double needs more than 24 characters; a literal far beyond that is a trap, not a number to convert. */
export const NUMBER_CHARS_MAX = 400

/**
 * The RFC 8785 form of a JSON text, or `undefined` when the text is a trap: something that is not JSON, or JSON that
 * two readers may understand differently, so that its canonical form would stand for more than one document.
 *
 * Traps: a repeated name, in whatever spelling; a number that is not the shortest-form value of a double (beyond 2^53,
 * 1e400, -0, too many digits); a lone surrogate; nesting beyond `DEPTH_MAX`; a byte order mark; anything RFC 8259 refuses.
 *
 * Guarantee: two texts have the same result only when they differ in nothing but white space, the order of members,
 * the escaping of characters and the spelling of equal decimals (`1.0`, `1`, `10e-1`). One pass, linear but for sorting.
 */
export function canonicalText(text: string): string | undefined {
  return text.isWellFormed() ? new Reader(text).document() : undefined
}

const TAB = 0x09
const LINE_FEED = 0x0a
const CARRIAGE_RETURN = 0x0d
const SPACE = 0x20
const QUOTE = 0x22
const PLUS = 0x2b
const COMMA = 0x2c
const MINUS = 0x2d
const DOT = 0x2e
const ZERO = 0x30
const NINE = 0x39
const COLON = 0x3a
const UPPER_E = 0x45
const ARRAY_OPEN = 0x5b
const BACKSLASH = 0x5c
const ARRAY_CLOSE = 0x5d
const LOWER_E = 0x65
const LOWER_F = 0x66
const LOWER_N = 0x6e
const LOWER_T = 0x74
const OBJECT_OPEN = 0x7b
const OBJECT_CLOSE = 0x7d

/** Integers of up to this many digits are below 2^53, and are their own shortest form. */
const SAFE_DIGITS_MAX = 15

/** A container was opened and is not empty: its first value comes next. Never a value's own text. */
const OPENED = ''

/** An array or object whose end has not been read yet. */
class Frame {
  readonly parent: Frame | undefined
  readonly depth: number
  /** Decoded, for comparing; `undefined` in an array. */
  readonly names: string[] | undefined
  /** Canonical `"name":value` texts, in step with `names`. */
  readonly members: string[] = []
  sorted = true
  name = ''
  nameText = ''
  /** An array's canonical items so far. */
  text = ''

  constructor(parent: Frame | undefined, names: string[] | undefined) {
    this.parent = parent
    this.depth = parent === undefined ? 1 : parent.depth + 1
    this.names = names
  }

  /** `false`: the name is there twice in a row. Other repetitions show when the members are sorted. */
  add(value: string): boolean {
    const names = this.names
    if (names === undefined) {
      this.text = this.text === '' ? value : `${this.text},${value}`
      return true
    }
    const last = names.length === 0 ? undefined : names[names.length - 1]
    if (last !== undefined && last >= this.name) {
      if (last === this.name) return false
      this.sorted = false
    }
    names.push(this.name)
    this.members.push(`${this.nameText}:${value}`)
    return true
  }

  /** `undefined`: a name is repeated. */
  close(): string | undefined {
    if (this.names === undefined) return `[${this.text}]`
    if (!this.sorted && !sortMembers(this.names, this.members)) return undefined
    return joinMembers(this.members)
  }
}

class Reader {
  readonly text: string
  at = 0
  frame: Frame | undefined = undefined
  /** The last string read by `string()`, decoded. */
  decoded = ''

  constructor(text: string) {
    this.text = text
  }

  document(): string | undefined {
    for (;;) {
      let value = this.value()
      if (value === undefined) return undefined
      if (value === OPENED) continue
      for (;;) {
        const frame: Frame | undefined = this.frame
        const code = this.token()
        // Past the end `charCodeAt` is NaN, and only there: nothing may follow the one value of a document.
        if (frame === undefined) return Number.isNaN(code) ? value : undefined
        if (!frame.add(value)) return undefined
        if (code === COMMA) {
          if (frame.names !== undefined && !this.name(frame)) return undefined
          break
        }
        if (code !== (frame.names === undefined ? ARRAY_CLOSE : OBJECT_CLOSE)) return undefined
        value = frame.close()
        if (value === undefined) return undefined
        this.frame = frame.parent
      }
    }
  }

  /** A scalar or an empty container as its canonical text; `OPENED`; or `undefined` for a trap. */
  value(): string | undefined {
    const code = this.token()
    switch (code) {
      case QUOTE:
        return this.string()
      case OBJECT_OPEN:
      case ARRAY_OPEN:
        return this.open(code === OBJECT_OPEN)
      case LOWER_T:
        return this.word('true')
      case LOWER_F:
        return this.word('false')
      case LOWER_N:
        return this.word('null')
      default:
        return this.number(code)
    }
  }

  open(isObject: boolean): string | undefined {
    const frame = new Frame(this.frame, isObject ? [] : undefined)
    if (frame.depth > DEPTH_MAX) return undefined
    const first = this.token()
    if (first === (isObject ? OBJECT_CLOSE : ARRAY_CLOSE)) return isObject ? '{}' : '[]'
    this.at--
    this.frame = frame
    return isObject && !this.name(frame) ? undefined : OPENED
  }

  /** Reads `"name":`. `false`: it is not there, or is a trap. */
  name(frame: Frame): boolean {
    if (this.token() !== QUOTE) return false
    const text = this.string()
    if (text === undefined) return false
    frame.nameText = text
    frame.name = this.decoded
    return this.token() === COLON
  }

  /** After the opening quote. */
  string(): string | undefined {
    const { text } = this
    const start = this.at
    let at = start
    let escaped = false
    for (;;) {
      const code = text.charCodeAt(at++)
      if (code === QUOTE) break
      if (code === BACKSLASH) {
        escaped = true
        at++
      } else if (!(code >= SPACE)) return undefined
    }
    this.at = at
    if (escaped) return this.unescaped(text.slice(start - 1, at))
    this.decoded = text.slice(start, at - 1)
    return text.slice(start - 1, at)
  }

  unescaped(quoted: string): string | undefined {
    let decoded: string
    try {
      decoded = JSON.parse(quoted)
    } catch {
      return undefined
    }
    if (!decoded.isWellFormed()) return undefined
    this.decoded = decoded
    return JSON.stringify(decoded)
  }

  word(word: string): string | undefined {
    if (!this.text.startsWith(word, this.at - 1)) return undefined
    this.at += word.length - 1
    return word
  }

  /** After the first character, which is `first`. */
  number(first: number): string | undefined {
    const { text } = this
    const start = this.at - 1
    let at = this.at
    let code = text.charCodeAt(at)
    if (first >= ZERO && first <= NINE) {
      while (code >= ZERO && code <= NINE) code = text.charCodeAt(++at)
      if (!isNumberPart(code) && at - start <= SAFE_DIGITS_MAX && (first !== ZERO || at === start + 1)) {
        this.at = at
        return text.slice(start, at)
      }
    } else if (first !== MINUS) return undefined
    while (isNumberPart(code)) code = text.charCodeAt(++at)
    this.at = at
    return at - start > NUMBER_CHARS_MAX ? undefined : canonicalNumber(text.slice(start, at))
  }

  /** Skips white space and takes the next character; NaN at the end. */
  token(): number {
    const { text } = this
    let code = text.charCodeAt(this.at++)
    while (code === SPACE || code === LINE_FEED || code === CARRIAGE_RETURN || code === TAB) {
      code = text.charCodeAt(this.at++)
    }
    return code
  }
}

function isNumberPart(code: number): boolean {
  return (
    (code >= ZERO && code <= NINE) ||
    code === DOT ||
    code === LOWER_E ||
    code === UPPER_E ||
    code === PLUS ||
    code === MINUS
  )
}

const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/

/**
 * A plain decimal with no zero to drop. Of at most `SAFE_DIGITS_MAX` digits it is what a double is printed as: no two such
 * decimals share a double, and from 0.1 on there is no exponent.
 */
const SHORTEST = /^-?(?:[1-9][0-9]*(?:\.[0-9]*[1-9])?|0\.[1-9](?:[0-9]*[1-9])?)$/

/** The shortest form of the double that the literal names, or `undefined` when the two are not the same decimal. */
function canonicalNumber(literal: string): string | undefined {
  if (literal.length <= SAFE_DIGITS_MAX && SHORTEST.test(literal)) return literal
  if (!NUMBER.test(literal)) return undefined
  const number = Number(literal)
  if (!Number.isFinite(number) || Object.is(number, -0)) return undefined
  const shortest = String(number)
  return shortest === literal || decimal(shortest) === decimal(literal) ? shortest : undefined
}

/** Sign, digits without zeros at either end, and exponent: equal exactly when the decimals are equal. */
function decimal(literal: string): string {
  const sign = literal.charCodeAt(0) === MINUS ? '-' : ''
  const [mantissa = '', exponent = '0'] = literal.slice(sign.length).toLowerCase().split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  const digits = whole + fraction
  let end = digits.length
  while (end > 0 && digits.charCodeAt(end - 1) === ZERO) end--
  let start = 0
  while (start < end && digits.charCodeAt(start) === ZERO) start++
  if (start === end) return '0'
  return `${sign}${digits.slice(start, end)}e${Number(exponent) - fraction.length + digits.length - end}`
}

/** Up to this many members are sorted by insertion, which beats the built-in sort on short lists. */
const INSERTION_MAX = 24

/** Sorts both lists by name, in UTF-16 code units. `false`: a name is repeated. */
function sortMembers(names: string[], members: string[]): boolean {
  if (names.length <= INSERTION_MAX) return insertionSort(names, members)
  const textOf = new Map<string, string>()
  for (let i = 0; i < names.length; i++) textOf.set(names[i] as string, members[i] as string)
  if (textOf.size !== names.length) return false
  names.sort()
  for (let i = 0; i < names.length; i++) members[i] = textOf.get(names[i] as string) as string
  return true
}

function insertionSort(names: string[], members: string[]): boolean {
  for (let i = 1; i < names.length; i++) {
    const name = names[i] as string
    const member = members[i] as string
    let to = i
    while (to > 0 && (names[to - 1] as string) > name) {
      names[to] = names[to - 1] as string
      members[to] = members[to - 1] as string
      to--
    }
    if (to > 0 && names[to - 1] === name) return false
    names[to] = name
    members[to] = member
  }
  return true
}

function joinMembers(members: readonly string[]): string {
  let text = `{${members[0]}`
  for (let i = 1; i < members.length; i++) text += `,${members[i]}`
  return `${text}}`
}
