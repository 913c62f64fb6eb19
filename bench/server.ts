/** A process that serves one contestant: `server.ts NAME DIRECTORY`, driven over its channel. */
import { type ChildFailure, reply, type ServerAsk, type ServerReady, type ServerUsage } from './child.ts'
import { contestants } from './contestants/index.ts'
import { runCount } from './contestants/workload.ts'
import { descendantsCpuUs } from './database-cpu.ts'

const [name, directory = ''] = process.argv.slice(2)
process.on('disconnect', () => process.exit(0))

try {
  const contestant = contestants.find((one) => one.name === name)
  if (contestant === undefined) throw new Error(`there is no contestant called ${name}`)
  const started = await contestant.start({ directory })
  process.on('message', async (message: ServerAsk) => {
    switch (message.ask) {
      case 'usage': {
        const { user, system } = process.cpuUsage()
        const databaseCpuUs = descendantsCpuUs() ?? 0
        const database = databaseCpuUs > 0 ? { databaseCpuUs } : {}
        return reply({ cpuUs: user + system, runs: runCount(), ...database } satisfies ServerUsage)
      }
      case 'reset':
        started.reset?.()
        return reply({})
      case 'close':
        await started.close()
        // An orderly end, so that a profile is written; nothing else may hold the process.
        return process.exit(0)
    }
  })
  reply({ port: started.port } satisfies ServerReady)
} catch (error) {
  reply({ failure: error instanceof Error ? firstLine(error.message) : String(error) } satisfies ChildFailure)
}

function firstLine(text: string): string {
  return text.split('\n', 1)[0] ?? text
}
