import { afterAll } from 'vitest'
import { findOwn, findService, type Server, type Service, type ServiceName } from '../services/index.ts'

/** The server of a test file, ended after its last test. Without one the URL is empty, and `missing` says why. */
export async function useService(name: ServiceName): Promise<{ readonly url: string; readonly missing: string }> {
  return untilTheEnd(await findService(name))
}

/** The same with one that the tests may kill. */
export async function useOwn(
  name: ServiceName,
): Promise<{ readonly url: string; readonly missing: string; server(): Server }> {
  const own = await findOwn(name)
  const server = () => {
    if (typeof own === 'string') throw new Error(own)
    return own
  }
  return { ...untilTheEnd(own), server }
}

function untilTheEnd(service: Service | string): { readonly url: string; readonly missing: string } {
  if (typeof service === 'string') return { url: '', missing: ` (skipped: ${service})` }
  afterAll(() => service.stop())
  return { url: service.url, missing: '' }
}
