import { readFile } from 'node:fs/promises'
import { extname } from 'node:path'

/** The dashboard as it was built, seen from src/admin and from dist/admin; in the repository before a build there is none. */
const FOLDER = new URL('../../dist/dashboard/', import.meta.url)

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.ico': 'image/x-icon',
}

export interface Asset {
  readonly type: string
  readonly bytes: Uint8Array
  /** Its name has a hash of what is in it. */
  readonly isImmutable: boolean
}

/** `path` as it stands in the address. Views of the dashboard are all the same page. */
export async function findAsset(path: string): Promise<Asset | undefined> {
  const isFile = /^\/assets\/[A-Za-z0-9._-]+$/.test(path)
  if (!isFile && !/^\/(?:|operations(?:\/[A-Za-z0-9]+)?|live|stuck|store)$/.test(path)) return undefined
  const name = isFile ? path.slice(1) : 'index.html'
  try {
    const bytes = await readFile(new URL(name, FOLDER))
    return { type: TYPES[extname(name)] ?? 'application/octet-stream', bytes, isImmutable: isFile }
  } catch {
    return undefined
  }
}
