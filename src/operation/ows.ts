const TAB = 0x09
const SPACE = 0x20

/** Without the optional white space of HTTP at either end, which is space and tab and nothing else. Linear, always. */
export function trimOws(value: string): string {
  let start = 0
  let end = value.length
  while (start < end && isOws(value.charCodeAt(start))) start++
  while (end > start && isOws(value.charCodeAt(end - 1))) end--
  return start === 0 && end === value.length ? value : value.slice(start, end)
}

function isOws(code: number): boolean {
  return code === SPACE || code === TAB
}
