/** Pictures of a screen have few colours: with a palette they take half the room. */
import { crc32, deflateSync, inflateSync } from 'node:zlib'

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
const COLOURS_MAX = 256
const RGB = 3

/** An 8-bit RGB picture again, each colour as the nearest one of its 256 most frequent. */
export function withPalette(png: Buffer): Buffer {
  const parts = chunks(png)
  const header = parts.find(({ type }) => type === 'IHDR')?.data
  if (header === undefined || header[8] !== 8 || header[9] !== 2)
    throw new Error('Only 8-bit RGB pictures are read here.')
  const width = header.readUInt32BE(0)
  const data = parts.filter(({ type }) => type === 'IDAT').map((part) => part.data)
  const rows = unfiltered(inflateSync(Buffer.concat(data)), width * RGB)
  const palette = frequentColours(rows)
  const indexOf = new Map<number, number>()
  const lines = rows.map((row) => {
    const line = Buffer.alloc(1 + width)
    for (let x = 0; x < width; x++) {
      const colour = row.readUIntBE(x * RGB, RGB)
      const index = indexOf.get(colour) ?? nearest(palette, colour)
      indexOf.set(colour, index)
      line[1 + x] = index
    }
    return line
  })
  const indexed = Buffer.from(header)
  indexed[9] = 3
  const table = Buffer.alloc(palette.length * RGB)
  for (const [i, colour] of palette.entries()) table.writeUIntBE(colour, i * RGB, RGB)
  return Buffer.concat([
    SIGNATURE,
    chunk('IHDR', indexed),
    chunk('PLTE', table),
    chunk('IDAT', deflateSync(Buffer.concat(lines), { level: 9, memLevel: 9 })),
    chunk('IEND', Buffer.alloc(0)),
  ])
}

function chunks(png: Buffer): Array<{ type: string; data: Buffer }> {
  const found: Array<{ type: string; data: Buffer }> = []
  for (let at = SIGNATURE.length; at < png.length; ) {
    const length = png.readUInt32BE(at)
    found.push({ type: png.toString('latin1', at + 4, at + 8), data: png.subarray(at + 8, at + 8 + length) })
    at += 12 + length
  }
  return found
}

function chunk(type: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type, 'latin1'), data])
  const ends = Buffer.alloc(8)
  ends.writeUInt32BE(data.length, 0)
  ends.writeUInt32BE(crc32(body), 4)
  return Buffer.concat([ends.subarray(0, 4), body, ends.subarray(4)])
}

function unfiltered(raw: Buffer, rowBytes: number): Buffer[] {
  const rows: Buffer[] = []
  let above: Buffer = Buffer.alloc(rowBytes)
  for (let at = 0; at < raw.length; at += 1 + rowBytes) {
    const row = Buffer.from(raw.subarray(at + 1, at + 1 + rowBytes))
    for (let i = 0; i < rowBytes; i++) {
      const [left, up, corner] = [row[i - RGB] ?? 0, above[i] ?? 0, above[i - RGB] ?? 0]
      row[i] = (row[i] ?? 0) + predicted(raw[at] ?? 0, left, up, corner)
    }
    rows.push(row)
    above = row
  }
  return rows
}

/** The five filters of PNG. */
function predicted(filter: number, left: number, up: number, corner: number): number {
  if (filter === 4) {
    const [byLeft, byUp, byCorner] = [Math.abs(up - corner), Math.abs(left - corner), Math.abs(left + up - 2 * corner)]
    if (byLeft <= byUp && byLeft <= byCorner) return left
    return byUp <= byCorner ? up : corner
  }
  return [0, left, up, (left + up) >> 1][filter] ?? 0
}

function frequentColours(rows: readonly Buffer[]): number[] {
  const counts = new Map<number, number>()
  for (const row of rows) {
    for (let i = 0; i < row.length; i += RGB) {
      const colour = row.readUIntBE(i, RGB)
      counts.set(colour, (counts.get(colour) ?? 0) + 1)
    }
  }
  const byCount = [...counts].sort(([, a], [, b]) => b - a)
  return byCount.slice(0, COLOURS_MAX).map(([colour]) => colour)
}

function nearest(palette: readonly number[], colour: number): number {
  let best = 0
  let bestDistance = Number.POSITIVE_INFINITY
  for (const [i, candidate] of palette.entries()) {
    const distance = [16, 8, 0].reduce((sum, shift) => {
      const difference = ((candidate >> shift) & 255) - ((colour >> shift) & 255)
      return sum + difference * difference
    }, 0)
    if (distance < bestDistance) [best, bestDistance] = [i, distance]
  }
  return best
}
