import { createRequire } from 'node:module'

const peers = createRequire(new URL('../peers/package.json', import.meta.url))

/**
 * A published library, out of bench/peers. The caller names the part of it that is used: the library is not there when
 * the types are checked, since `npm ci` at the root does not install it.
 */
export function peer<T>(name: string): T {
  return peers(name) as T
}
