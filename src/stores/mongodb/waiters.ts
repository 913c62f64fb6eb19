import { AwaitedRecords, lookTogether } from '../../awaited-records.ts'
import type { Subscription } from '../../shared-subscription.ts'
import type { MongodbChangeStream } from './client.ts'

/** How often the awaited records are looked at, all in one command, where the server cannot push. */
const POLL_MS = 25
/** How long the change stream is kept when nobody waits any more. */
const STREAM_IDLE_MS = 10_000
/** After a change stream failed, polling serves for this long before another is tried. */
const STREAM_RETRY_MS = 60_000

/** All that can end a wait: an update of outcome or lease, and a removal. New records and their bodies are not sent. */
export const CHANGES: readonly object[] = [
  {
    $match: {
      $or: [
        { operationType: { $in: ['delete', 'replace'] } },
        { 'updateDescription.updatedFields.outcome': { $exists: true } },
        { 'updateDescription.updatedFields.leaseUntil': { $exists: true } },
      ],
    },
  },
  { $project: { operationType: 1, documentKey: 1 } },
]

export interface WaiterParts {
  /** Which of these records are running, and for how many more ms. */
  readonly look: (ids: readonly string[]) => Promise<ReadonlyMap<string, number>>
  readonly watch: () => MongodbChangeStream
}

/**
 * Other processes' changes come by one change stream, shared by all who wait, that is open only while somebody does.
 * Until it is heard from, and on a server that has none (it is not a replica set), the records are polled.
 */
export class Waiters extends AwaitedRecords {
  constructor({ look, watch }: WaiterParts) {
    super({
      look: lookTogether(look),
      subscription: {
        open: (onLost) => this.#open(watch(), onLost),
        lingerMs: STREAM_IDLE_MS,
        pauseMs: { failed: STREAM_RETRY_MS, lost: STREAM_RETRY_MS },
      },
      pollMs: POLL_MS,
    })
  }

  /** How a change of another process is noticed now. */
  get mode(): 'push' | 'poll' {
    return this.isHeard ? 'push' : 'poll'
  }

  #open(stream: MongodbChangeStream, onLost: () => void): Subscription {
    stream.on('change', (change: Change) => this.lookAt(change.documentKey?._id ?? ''))
    stream.on('error', onLost)
    stream.on('close', onLost)
    stream.on('end', onLost)
    // The first token comes with the reply that opened the stream: from that moment on nothing is missed.
    const ready = new Promise<void>((resolve) => stream.on('resumeTokenChanged', resolve))
    return { ready, close: () => stream.close() }
  }
}

interface Change {
  readonly documentKey?: { readonly _id?: string }
}
