const [KEY_0 = 0, KEY_1 = 0] = crypto.getRandomValues(new Uint32Array(2))

/**
 * HalfSipHash-2-4 of a text under a secret of this process, as two words of 32 bits into `out`. It is here because it
 * costs a tenth of a call into crypto, and is asked for every value of every body. Good for telling values apart without
 * keeping them; not a digest to rely on elsewhere.
 */
export function keyedHash(text: string, out: Uint32Array, at: number): void {
  let v0 = KEY_0 | 0
  let v1 = KEY_1 ^ 0xee
  let v2 = 0x6c796765 ^ KEY_0
  let v3 = 0x74656462 ^ KEY_1
  const { length } = text
  const last = length & ~1
  // The words of the text, then one with its length and odd character, then the rounds that end each half of the output.
  const words = last / 2 + 1
  for (let word = 0; word < words + 2; word++) {
    let m = 0
    let rounds = 2
    if (word < words - 1) m = text.charCodeAt(2 * word) | (text.charCodeAt(2 * word + 1) << 16)
    else if (word === words - 1) m = (length << 16) | (length > last ? text.charCodeAt(last) : 0)
    else {
      rounds = 4
      if (word === words) v2 ^= 0xee
      else v1 ^= 0xdd
    }
    v3 ^= m
    for (let round = 0; round < rounds; round++) {
      v0 = (v0 + v1) | 0
      v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0
      v0 = (v0 << 16) | (v0 >>> 16)
      v2 = (v2 + v3) | 0
      v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2
      v0 = (v0 + v3) | 0
      v3 = ((v3 << 7) | (v3 >>> 25)) ^ v0
      v2 = (v2 + v1) | 0
      v1 = ((v1 << 13) | (v1 >>> 19)) ^ v2
      v2 = (v2 << 16) | (v2 >>> 16)
    }
    v0 ^= m
    if (word >= words) out[at + word - words] = v1 ^ v3
  }
}
