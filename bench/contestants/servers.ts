import { findOwn } from '../../test/services/index.ts'

/** A database server of this contestant's own, durable, that ends with this process. */
export async function serverOf(name: 'postgres' | 'redis'): Promise<{ readonly url: string }> {
  const server = await findOwn(name)
  if (typeof server === 'string') throw new Error(server)
  return server
}
