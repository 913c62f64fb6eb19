import type { Store } from '../../store.ts'

/** Waits in the ledger that has the owner: in the local one for those of this data centre, else in the global one. */
export function waitForEither(local: Store, global: Store): Store['waitFor'] {
  const { waitFor: waitLocally } = local
  const { waitFor: waitGlobally } = global
  if (!waitLocally || !waitGlobally) return undefined
  return async (id, signal) => {
    if (signal.aborted) return
    const isHere = (await local.read(id))?.state === 'running'
    if (!isHere) return waitGlobally.call(global, id, signal)
    // Whichever changes first: the owner may have lost one of them.
    const done = new AbortController()
    const either = AbortSignal.any([signal, done.signal])
    try {
      await Promise.race([waitLocally.call(local, id, either), waitGlobally.call(global, id, either)])
    } finally {
      done.abort()
    }
  }
}
